"""The results file: what is kept, what is refused, and what tells models and texts apart."""

import dataclasses
import json

import pytest
import tiny_models
import torch

from sglang_oea.lab.errors import LabError
from sglang_oea.lab.results import Results, Row, Setting, hash_of_tokens, hash_of_weights

SETTING = Setting("demo", "held_out.jsonl", "float32", 5, "abc", "def")
ROW = Row(SETTING, "oea:k0=4", 2, [3.0, 4.5], [8.0, 4.0], [0.5, 0.25], [1, 0], 1.5)


def test_rows_come_back(tmp_path):
    """Holds that what was written is what a resumed run finds, digit for digit."""
    path = tmp_path / "new" / "r.jsonl"
    Results(path, SETTING).add(ROW)
    third = dataclasses.replace(ROW, policy="sere:top=1,rho=0.1", nats=[0.1 + 0.2, 1 / 3])
    third = dataclasses.replace(third, calibration="cal")
    Results(path, SETTING).add(third)
    again = Results(path, SETTING)
    assert again.rows == [ROW, third]
    assert again.find(("oea:k0=4", 2, None)) == ROW
    assert again.find(("oea:k0=4", 4, None)) is None
    # similarities of another calibration text are another measurement
    assert again.find((third.policy, 2, "other")) is None
    assert ROW.tokens == 8 and ROW.per_token(ROW.nats).tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        json.dumps(dataclasses.asdict(ROW))[:-9],
        json.dumps(dataclasses.asdict(ROW) | {"nats": [1.0]}),
        json.dumps(dataclasses.asdict(ROW) | {"nats": ["x", "y"]}),
        json.dumps(dataclasses.asdict(ROW) | {"extra": 1}),
        json.dumps({k: v for k, v in dataclasses.asdict(ROW).items() if k != "setting"}),
    ],
)
def test_corrupt_line(tmp_path, line):
    """Holds that a corrupt line is refused by its number, and that the file stays as it is."""
    path = tmp_path / "r.jsonl"
    Results(path, SETTING).add(ROW)
    content = path.read_text() + line + "\n" + path.read_text()
    path.write_text(content)
    with pytest.raises(LabError) as refusal:
        Results(path, SETTING)
    said = str(refusal.value)
    assert f"{path}, line 2" in said and "delete this line" in said
    assert (line[:80] or "an empty line") in said
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "xyz", "model_name": "big"}, ("another model", "abc (demo)", "xyz (big)")),
        ({"text": "xyz"}, ("another text", "def (held_out.jsonl)", "--seed")),
        ({"dtype": "bfloat16"}, ("another dtype", "bfloat16", "--dtype")),
        ({"length": 9}, ("another length", "5", "9")),
    ],
)
def test_results_of_something_else(tmp_path, change, said):
    """Holds that numbers of two models or texts never end in one table."""
    path = tmp_path / "r.jsonl"
    Results(path, SETTING).add(ROW)
    with pytest.raises(LabError) as refusal:
        Results(path, dataclasses.replace(SETTING, **change))
    for part in said:
        assert part in str(refusal.value)


def test_a_moved_model_is_the_same(tmp_path):
    """Holds that the weights decide, not what their folder is called."""
    path = tmp_path / "r.jsonl"
    Results(path, SETTING).add(ROW)
    assert Results(path, dataclasses.replace(SETTING, model_name="moved")).rows == [ROW]


def test_hashes():
    """Holds that a retrained model and reordered sequences are told apart from the first ones."""
    model = tiny_models.build("mixtral")
    first = hash_of_weights(model)
    assert hash_of_weights(tiny_models.build("mixtral")) == first
    with torch.no_grad():
        model.model.layers[0].mlp.gate.weight.mul_(1.001)
    assert hash_of_weights(model) != first
    assert hash_of_weights(tiny_models.build("mixtral").bfloat16()) != first
    tokens = tiny_models.tokens(4, 5)
    assert hash_of_tokens(tokens) == hash_of_tokens(tokens.clone())
    assert hash_of_tokens(tokens) != hash_of_tokens(tokens.flip(0))
    assert hash_of_tokens(tokens) != hash_of_tokens(tokens.view(5, 4))
