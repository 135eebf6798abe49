"""The trained model in `sglang_oea/demo/`: what it promises of itself."""

import json
from pathlib import Path

import pytest
import torch
from demo_model.measure import evaluate, sequences
from demo_model.texts import CHAT, is_held_out, read_jsonl
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).resolve().parents[2] / "sglang_oea" / "demo"


@pytest.fixture(scope="module")
def figures():
    """What was measured when it was made."""
    return json.loads((DEMO / "figures.json").read_text())


def test_it_is_small():
    """Holds that the package stays light: 12 MB of weights, below 6 M of them, in bfloat16."""
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 13_500_000
    path = DEMO / "model.safetensors"
    assert path.stat().st_size <= 12_000_000
    with safe_open(path, "pt") as tensors:
        kept = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    assert sum(weight.numel() for weight in kept.values()) <= 6_000_000
    precise = {name for name, weight in kept.items() if weight.dtype != torch.bfloat16}
    assert len(precise) == 4 and all(n.endswith("e_score_correction_bias") for n in precise)


def test_its_texts():
    """Holds that what it is measured on was held out, and what it is calibrated on was not."""
    held_out, calibration = (read_jsonl(DEMO / f"{n}.jsonl") for n in ("held_out", "calibration"))
    assert all(is_held_out(row["name"]) for row in held_out)
    assert calibration and not any(is_held_out(row["name"]) for row in calibration)
    listed = {source["package"] for source in json.loads((DEMO / "sources.json").read_text())}
    for rows in (held_out, calibration):
        assert {row["name"].split("/")[0] for row in rows} == listed


def test_it_is_a_real_mixture(figures):
    """Holds that no expert is idle, no layer collapsed, and T at 16 rows far from both ends.

    And that the loss is that of a model that has learnt: 8.03 nats would be a guess.
    """
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    held_out = sequences(read_jsonl(DEMO / "held_out.jsonl"), tokenizer, 512)
    assert len(held_out) >= figures["sequences"] >= 200
    found = evaluate(model, held_out[:32], tokenizer)
    assert found["least_load"] > 0 and figures["least_load"] > 0
    for measured in (found, figures):
        assert 0.4 < measured["T_of_uniform"] < 0.9
        assert len(measured["T_by_layer"]) == 4 and min(measured["T_by_layer"]) > 0.4 * 56.44
    assert found["held_out"] == pytest.approx(figures["held_out"], abs=0.3)
    assert figures["held_out"] < 4


def test_it_talks():
    """Holds that a chat reaches it, and that it knows its end."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert tokenizer.chat_template.strip() == CHAT.strip()
    asked = [{"role": "user", "content": "The function"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == "The function\n"
    assert tokenizer.decode(tokenizer("naïve → 7")["input_ids"]) == "naïve → 7"
    config = json.loads((DEMO / "config.json").read_text())
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert config["architectures"] == ["Glm4MoeForCausalLM"]


def test_its_readme_says_what_was_measured(figures):
    """Holds that a new model cannot ship with the figures of the old one."""
    text = (DEMO / "README.md").read_text()
    for name, shown in (("held_out", "{:.3f}"), ("per_byte", "{:.3f}"), ("T", "{:.1f}")):
        assert shown.format(figures[name]) in text, name
    assert "{:.2f}".format(figures["T_of_uniform"]) in text
    for source in json.loads((DEMO / "sources.json").read_text()):
        assert f"| {source['package']} | {source['version']} |" in text
