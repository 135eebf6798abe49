"""`SGLANG_OEA_TRACE` on stock `select_experts`: what is written, when, by whom; what is refused."""

import json
import logging
import os
from types import SimpleNamespace

import pytest
import torch
from stubs import Batch, assert_refusal

from plugin.routers import HIDDEN, ROWS, logits, topk_config
from sglang_oea.core import config, ranks
from sglang_oea.lab.trace import read
from sglang_oea.plugin import hooks

LAYER, K0 = 5, 3
# rows 3 and the last two are padding
SLOTS = [0 if row in (3, ROWS - 2, ROWS - 1) else row + 1 for row in range(ROWS)]


class Model(torch.nn.Module):
    """One router, whose forward routes the logits that it is given."""

    def __init__(self, name: str, shared: int):
        from sglang.srt.layers.moe.topk import TopK, TopKOutputFormat

        super().__init__()
        self.anything = torch.nn.Parameter(torch.zeros(1))
        # built by hand: SGLang's constructor wants a published server configuration
        self.topk = TopK.__new__(TopK)
        torch.nn.Module.__init__(self.topk)
        self.topk.layer_id, self.topk.is_draft = LAYER, False
        self.topk.topk_config = topk_config(name, shared, output_format=TopKOutputFormat.STANDARD)

    def forward(self, router_logits, positions, forward_batch):
        """What `select_experts` returned."""
        from sglang.srt.layers.moe import topk

        hidden = torch.zeros(router_logits.shape[0], HIDDEN)
        return topk.select_experts(
            hidden, router_logits, self.topk.topk_config, layer_id=LAYER, **positions
        )


@pytest.fixture
def load(host: hooks.Plugin, monkeypatch, tmp_path):
    """A function that loads a model as rank `rank` under these settings, and returns it."""
    import sglang.srt.distributed as distributed

    monkeypatch.setattr(host.session, "recorder", None)
    monkeypatch.setattr(ranks, "disagreement", lambda fingerprint, group: None)

    def loaded(
        name: str = "glm-5: scaling folded",
        shared: int = 0,
        rank: int = 0,
        weights=lambda runner: None,
        draft: bool = False,
        **settings: str,
    ) -> Model:
        settings = {"K0": str(K0), "TRACE": str(tmp_path / "new" / "trace")} | settings
        environ = {f"SGLANG_OEA_{name}": value for name, value in settings.items()}
        monkeypatch.setattr(host.session, "settings", config.from_environment(environ))
        group = SimpleNamespace(cpu_group=None, rank_in_group=rank)
        monkeypatch.setattr(distributed, "get_tp_group", lambda: group)
        server_args = SimpleNamespace()
        model = Model(name, shared)
        runner = SimpleNamespace(is_draft_worker=draft, server_args=server_args, model=model)
        host.load_model(weights, runner)
        return model

    return loaded


@pytest.fixture
def folder(tmp_path):
    """Where `load` lets a server record unless told otherwise."""
    return tmp_path / "new" / "trace"


def run(model: Model, seed: int = 0, mode: str = "decode", **more):
    """One forward of `ROWS` rows."""
    return model.forward(logits(seed), more, forward_batch=Batch.of(mode, *SLOTS))


def written(folder) -> list[str]:
    """What a folder holds."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("glm-5: scaling folded", 0),
        ("glm-5: scaling folded", 1),
        ("qwen3: softmax", 0),
        ("deepseek-v3: eight groups", 0),
    ],
)
def test_a_call_is_written_as_it_was_routed(load, folder, name, shared):
    """Holds that logits, stock and served selection are those of the hooked function."""
    model = load(name, shared)
    stock = run(model, mode="extend")
    served = run(model)

    trace = read(folder)
    (call,) = trace.calls()
    assert (call.step, call.layer_id, call.k0.item()) == (0, LAYER, K0)
    assert call.valid.tolist() == [slot != 0 for slot in SLOTS]
    assert torch.equal(call.logits, logits(0))
    bias = model.topk.topk_config.correction_bias
    assert call.bias is None if bias is None else torch.equal(call.bias, bias)
    assert torch.equal(call.stock_ids, stock.topk_ids)
    assert torch.equal(call.stock_weights, stock.topk_weights)
    assert torch.equal(call.ids, served.topk_ids)
    assert torch.equal(call.weights, served.topk_weights)
    assert not torch.equal(call.ids, call.stock_ids)
    assert (call.router.slots, call.router.shared_slots) == (8, shared)
    assert (trace.k0, trace.max_rank, trace.modes) == (K0, None, ("decode",))
    assert (trace.impl, trace.steps_wanted, trace.complete) == ("torch", 64, False)


def test_half_precision_logits_stay_as_they_are(load, folder):
    """Holds that logits are not widened: a replay must see the ties that the server saw."""
    model = load()
    model.forward(logits(0).bfloat16(), {}, forward_batch=Batch.of("decode", *SLOTS))
    (call,) = read(folder).calls()
    assert torch.equal(call.logits, logits(0).bfloat16())


def test_num_token_non_padded_decides_which_rows_are_real(load, folder):
    """Holds that a trace has the rows that were routed, where SGLang counts them itself."""
    run(load(), num_token_non_padded=torch.tensor(7))
    (call,) = read(folder).calls()
    assert call.valid.sum() == 7 and call.valid[:7].all()


def test_recording_ends_after_its_steps(load, host, folder):
    """Holds that the first forwards are kept, in order, and that nothing goes on after them."""
    model = load(TRACE_STEPS="2")
    run(model, seed=1)
    assert not read(folder).complete
    run(model, seed=9, mode="extend")
    run(model, seed=2)
    assert host.session.recorder is None
    run(model, seed=3)

    trace = read(folder)
    assert trace.complete
    assert written(folder) == ["manifest.json", *(step.file for step in trace.steps)]
    assert [call.step for call in trace.calls()] == [0, 1]
    for call, seed in zip(trace.calls(), (1, 2), strict=True):
        assert torch.equal(call.logits, logits(seed))


def test_live_k0_is_written_with_each_call(load, host, folder):
    """Holds that a trace replays although k0 changed while it was recorded."""
    model = load()
    for k0 in (3, 0, 5):
        host.session.set_k0(k0)
        run(model)
    assert [call.k0.item() for call in read(folder).calls()] == [3, 0, 5]


def test_call_that_is_left_alone_is_not_written(load, folder):
    """Holds that a trace has rerouted calls only: nothing else can be replayed."""
    model = load()
    run(model)
    # two rows began the forward, and more arrive here
    model.forward(logits(0), {}, forward_batch=Batch.of("decode", 1, 2))
    assert len(list(read(folder).calls())) == 1


def test_a_manifest_is_whole_or_not_there(load, host, folder, monkeypatch, caplog):
    """Holds that a failure while writing leaves the trace before it, and the server serving."""
    model = load()
    run(model, seed=1)
    before = (folder / "manifest.json").read_bytes()

    def full(source, target):
        # what would be renamed is whole already
        assert len(json.loads(source.read_text())["steps"]) == 2
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        served = run(model, seed=2)
    assert not torch.equal(served.topk_ids, run(model, seed=2, mode="extend").topk_ids)
    assert (folder / "manifest.json").read_bytes() == before
    assert "no longer recording: No space left" in caplog.text
    assert host.session.recorder is None and host.session.rerouter is not None
    run(model, seed=3)
    assert len(list(read(folder).calls())) == 1


def test_folder_in_use_is_refused_before_the_weights_load(load, folder):
    """Holds that a second server never mixes its files with those of the first."""
    folder.mkdir(parents=True)
    load()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(config.Refusal) as refusal:
        load(weights=lambda runner: pytest.fail("weights were loaded"))
    assert_refusal(refusal.value, f"SGLANG_OEA_TRACE={folder}", "it holds notes.txt")
    assert written(folder) == ["notes.txt"]


def test_place_that_cannot_be_written_to_is_refused(load, tmp_path):
    """Holds that a folder below a file is no folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(config.Refusal, match="in a place that can be written to"):
        load(TRACE=str(tmp_path / "file" / "trace"))


def test_not_strict_serves_stock(load, host, folder, caplog):
    """Holds that a trace that cannot be had leaves a stock server, and says so."""
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    model = load(STRICT="0")
    assert host.session.rerouter is None
    assert torch.equal(run(model).topk_ids, run(model, mode="extend").topk_ids)
    assert "stock SGLang is served" in caplog.text


@pytest.mark.parametrize("who", [dict(rank=1), dict(draft=True)])
def test_others_write_nothing(load, host, folder, who):
    """Holds that one rank of the target model writes: all ranks route alike."""
    if "draft" in who:
        host.session.admitted = True
    model = load(**who)
    run(model)
    assert host.session.recorder is None
    assert not folder.exists()


@pytest.fixture
def capturing(monkeypatch):
    """A stream that captures a graph, as torch tells it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def test_capture_is_refused(load, folder, capturing):
    """Holds the last guard: a graph that no argument announced."""
    model = load()
    run(model, mode="extend")
    with pytest.raises(config.Refusal) as refusal:
        run(model)
    assert_refusal(refusal.value, f"SGLANG_OEA_TRACE={folder}", "--disable-cuda-graph")
    assert written(folder) == []


def test_capture_that_is_not_strict_loses_the_recording_only(load, host, capturing, caplog):
    """Holds that this rank goes on routing as the others do, which record nothing.

    Only rank 0 records: when it alone turned to stock, ranks summed parts of different experts.
    """
    model = load(STRICT="0")
    with caplog.at_level(logging.ERROR, "sglang_oea"):
        assert not torch.equal(run(model).topk_ids, run(model, mode="extend").topk_ids)
    assert host.session.rerouter is not None and host.session.recorder is None
    assert caplog.text.count("nothing is recorded") == 1
