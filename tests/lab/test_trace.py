"""A recorded trace, read and replayed: what agrees, what differs, what is no trace."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from stubs import TopKConfig, make_config, make_rerouter, open_gate

from sglang_oea import cli
from sglang_oea.core.scores import Router, from_logits
from sglang_oea.core.session import Session
from sglang_oea.lab.errors import LabError
from sglang_oea.lab.replay import replay
from sglang_oea.lab.trace import read
from sglang_oea.plugin import trace as recording

EXPERTS = 32
BIAS = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(7)) * 0.1
ROUTERS = {
    "softmax": TopKConfig(top_k=4),
    "softmax as it is": TopKConfig(top_k=4, renormalize=False),
    "glm": TopKConfig(top_k=4, use_grouped_topk=True, correction_bias=BIAS),
    "glm, shared": TopKConfig(
        top_k=5, use_grouped_topk=True, correction_bias=BIAS, num_fused_shared_experts=1
    ),
    "groups": TopKConfig(
        top_k=4,
        use_grouped_topk=True,
        correction_bias=BIAS,
        num_expert_group=4,
        topk_group=2,
    ),
}


def selection(config: TopKConfig, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a stock router gives, at a scale of 2.5, shared experts' column last."""
    router = Router.of(config)
    choice, gate = from_logits(
        logits,
        router.scoring,
        correction_bias=config.correction_bias,
        num_expert_group=router.num_expert_group,
        topk_group=router.topk_group,
    )
    ids = choice.topk(router.slots).indices
    weights = gate.gather(-1, ids)
    if router.renormalize:
        weights = weights / weights.sum(-1, keepdim=True) * 2.5
    shared = torch.full((len(ids), router.shared_slots), EXPERTS)
    return torch.cat([weights, torch.full(shared.shape, 0.4)], -1), torch.cat([ids, shared], -1)


def record(folder, config: TopKConfig, k0: str = "2", *, rows=(9, 5), **settings):
    """A server's session of two layers that records one forward for each number of rows.

    The last row of each forward is padding; logits are bf16, as a gate in bf16 gives them.
    """
    settings = make_config(k0, trace=str(folder), trace_steps=3, **settings)
    session = Session(settings)
    session.rerouter = make_rerouter(settings, {1: config, 4: config})
    recording.attach(session)
    generator = torch.Generator().manual_seed(0)
    for count in rows:
        open_gate(session.rerouter, *[True] * (count - 1), False)
        for layer_id in (1, 4):
            logits = torch.randn(count, EXPERTS, generator=generator).bfloat16()
            weights, ids = selection(config, logits)
            session.reroute_topk(weights, ids.int(), logits, config, layer_id)
        session.recorder.end_forward()
    return session


@pytest.mark.parametrize("settings", [{}, {"max_rank": 6}, {"k0": "1:1,6:3"}])
@pytest.mark.parametrize("name", ROUTERS)
def test_replay_agrees_with_what_was_served(tmp_path, name, settings):
    """Holds that every call routes again to the same experts, under the server's counters."""
    session = record(tmp_path / "trace", ROUTERS[name], **settings)
    result = replay(read(tmp_path / "trace"))
    assert (result.wrong_ids, result.wrong_weights, result.first) == (0, 0, None)
    report = session.report()
    assert result.counters == {column: report[column] for column in result.counters}
    assert result.counters["calls"] == 4 and result.counters["rows"] == 2 * (8 + 4)
    assert result.counters["slots_rerouted"] > 0


@pytest.fixture
def folder(tmp_path):
    """A good trace."""
    record(tmp_path / "trace", ROUTERS["glm"])
    return tmp_path / "trace"


def change(folder, name: str, edit) -> None:
    """Edit one tensor of the first shard."""
    path = folder / "step-00000.safetensors"
    tensors = load_file(path)
    tensors[name] = edit(tensors[name].clone())
    save_file(tensors, path)


def bump(row: int, by: float):
    """An edit that raises the first value of a row."""

    def edit(tensor: torch.Tensor) -> torch.Tensor:
        tensor[row, 0] += by
        return tensor

    return edit


def test_a_changed_id_is_found(folder):
    """Holds that one expert in one row is enough, and that it is named."""
    served = load_file(folder / "step-00000.safetensors")["1.ids"]
    other = min(set(range(EXPERTS)) - set(served[6].tolist()))
    change(folder, "1.ids", bump(6, other - int(served[6, 0])))
    result = replay(read(folder))
    assert (result.wrong_ids, result.wrong_weights) == (1, 0)
    assert result.first.startswith(f"step 0, layer 4, row 6: served [{other}, ")


def test_a_changed_weight_is_found(folder):
    """Holds the tolerance: a rounding error passes, a different weight does not."""
    change(folder, "0.weights", bump(2, 1e-7))
    assert replay(read(folder)).first is None
    change(folder, "0.weights", bump(2, 1e-3))
    result = replay(read(folder))
    assert (result.wrong_ids, result.wrong_weights) == (0, 1)
    assert result.first.startswith("step 0, layer 1, row 2: served [")


def test_a_changed_logit_is_found(folder):
    """Holds that the choice is made from the logits, not read from the record."""
    change(folder, "0.logits", lambda logits: logits.flip(-1))
    result = replay(read(folder))
    assert result.wrong_ids > 4


def test_a_changed_setting_is_found(folder):
    """Holds that k0 and max_rank of the trace are those that replay uses."""
    change(folder, "0.k0", lambda k0: k0 + 1)
    assert replay(read(folder)).wrong_ids > 0
    change(folder, "0.k0", lambda k0: k0 - 1)
    assert replay(read(folder)).wrong_ids == 0
    edit_manifest(folder, lambda manifest: manifest.update(max_rank=5))
    assert replay(read(folder)).wrong_ids > 0


def test_a_row_that_is_not_sound_replays(tmp_path):
    """Holds that NaN scores and weights, which pass through, are equal to themselves."""
    settings = make_config("2", trace=str(tmp_path / "trace"))
    session = Session(settings)
    session.rerouter = make_rerouter(settings, {0: ROUTERS["softmax"]})
    recording.attach(session)
    open_gate(session.rerouter, True, True, True)
    logits = torch.randn(3, EXPERTS, generator=torch.Generator().manual_seed(1))
    logits[1] = torch.nan
    weights, ids = selection(ROUTERS["softmax"], logits)
    session.reroute_topk(weights, ids.int(), logits, ROUTERS["softmax"], 0)
    session.recorder.end_forward()
    assert weights[1].isnan().all()
    assert replay(read(tmp_path / "trace")).first is None


def edit_manifest(folder, edit) -> None:
    """Edit the manifest as JSON."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def damaged(folder, *said: str) -> None:
    """Reading or replaying is refused in words that include `said`."""
    with pytest.raises(LabError) as error:
        replay(read(folder))
    for words in ("where:", "got:", "expected:", "fix:", *said):
        assert words in str(error.value)


def test_a_folder_without_manifest_is_refused(tmp_path):
    """Holds that a folder of something else is told from a trace."""
    damaged(tmp_path, "this is not a trace", "manifest.json", "after the first decode forward")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1}'])
def test_a_manifest_that_is_none_is_refused(folder, text):
    """Holds that neither a torn file nor another format ends in a traceback."""
    (folder / "manifest.json").write_text(text)
    damaged(folder, "this is not a trace")


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: manifest["routers"].pop("4"),
        lambda manifest: manifest["routers"]["4"].pop("slots"),
        lambda manifest: manifest["routers"]["4"].update(colour="red"),
        lambda manifest: manifest.update(steps=[{"file": "step-00000.safetensors"}]),
        lambda manifest: manifest.pop("modes"),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(folder, edit):
    """Holds that each part of a manifest is asked for."""
    edit_manifest(folder, edit)
    damaged(folder, "this is not a trace")


def test_a_missing_shard_is_refused(folder):
    """Holds that a replay of half a trace never passes for one of the whole."""
    (folder / "step-00001.safetensors").unlink()
    damaged(folder, "damaged", "step-00001.safetensors", "no such file")


def test_a_torn_shard_is_refused(folder):
    """Holds that an interrupted copy is noticed."""
    path = folder / "step-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    damaged(folder, "damaged", "a safetensors file")


def test_a_shard_of_another_step_is_refused(folder):
    """Holds that rows are compared with the manifest's."""
    (folder / "step-00001.safetensors").replace(folder / "step-00000.safetensors")
    damaged(folder, "damaged", "call 0: logits of shape (5, 32), not (9, 32)")


@pytest.mark.parametrize("name", ["logits", "bias", "valid", "k0", "stock_weights", "ids"])
def test_a_shard_that_lacks_a_tensor_is_refused(folder, name):
    """Holds that each tensor of a call is asked for, and in its shape."""
    path = folder / "step-00000.safetensors"
    tensors = load_file(path)
    taken = tensors.pop(f"1.{name}")
    save_file(tensors, path)
    damaged(folder, "damaged", f"call 1: {name} of shape None")
    save_file(tensors | {f"1.{name}": taken.unsqueeze(-1).contiguous()}, path)
    damaged(folder, "damaged", "call 1: ")


def test_a_shard_with_more_than_its_calls_is_refused(folder):
    """Holds that what nobody would look at is not passed over."""
    edit_manifest(folder, lambda manifest: manifest["steps"][0]["calls"].pop())
    damaged(folder, "1.bias of no call")


def test_command(folder, tmp_path, capsys):
    """Holds the exit status and the words of each outcome: 0, 1 and 2."""
    assert cli.main(["trace", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 forwards, not complete" in said and "k0=2" in said
    assert "4 calls of 2 MoE layers, 24 rows; T per call " in said
    assert "the same experts in every call" in said

    change(folder, "0.k0", lambda k0: k0 + 1)
    assert cli.main(["trace", str(folder)]) == 1
    assert "DIFFERS" in capsys.readouterr().out

    assert cli.main(["trace", str(tmp_path / "nowhere")]) == 2
    assert "this is not a trace" in capsys.readouterr().err
