"""The kernel behind `reroute_topk`: chosen once, tried before it is trusted, traceable."""

import importlib

import pytest
import torch
from stubs import Selection, TopKConfig, make_config, make_rerouter, open_gate, two_rows

from sglang_oea.core import launch, trial
from sglang_oea.core import layer as layer_module
from sglang_oea.core.config import Refusal
from sglang_oea.core.scores import Router, from_logits

ROUTERS = {
    "sigmoid with bias": Router("sigmoid", 8, 0, True, 1, 1, True),
    "softmax": Router("softmax", 8, 0, False, 1, 1, False),
    "sqrtsoftplus with bias": Router("sqrtsoftplus", 6, 0, True, 1, 1, True),
    "groups": Router("sigmoid", 8, 0, True, 8, 4, True),
}


@pytest.fixture
def interpreted(monkeypatch):
    """As if this were a CUDA device: the kernel runs in the interpreter."""
    monkeypatch.setattr(layer_module, "_implementation", lambda wanted, device: "triton")


def test_triton_without_cuda_is_refused():
    """`auto` takes plain torch there."""
    with pytest.raises(Refusal, match="SGLANG_OEA_IMPL"):
        make_rerouter(make_config("4", impl="triton"))
    assert make_rerouter(make_config("4")).impl == "torch"


@pytest.mark.parametrize("shared", [0, 1])
def test_same_selection_and_counters_as_the_reference(monkeypatch, shared):
    """Whatever runs behind it, `reroute_topk` answers and counts alike."""
    config = TopKConfig(top_k=4 + shared)
    config.num_shared_topk_slots = shared
    case = Selection(6, 16, TopKConfig(top_k=4))
    if shared:
        case.ids = torch.cat([case.ids, torch.full((6, 1), 16, dtype=case.ids.dtype)], 1)
        case.weights = torch.cat([case.weights, torch.full((6, 1), 0.4)], 1)
    case.config = config
    results = []
    for impl in ("torch", "triton"):
        monkeypatch.setattr(layer_module, "_implementation", lambda wanted, device, i=impl: i)
        rerouter = make_rerouter(make_config("2"), {0: config})
        open_gate(rerouter, True, True, False, True, True, True)
        results.append((*case.through(rerouter), rerouter.report() | {"impl": ""}))
    (weights, ids, report), (kernel_weights, kernel_ids, kernel_report) = results
    assert torch.equal(ids, kernel_ids)
    torch.testing.assert_close(weights, kernel_weights, rtol=1e-6, atol=1e-12)
    assert report == kernel_report


def test_traces_without_a_graph_break(interpreted):
    """The launch is one operator to a compiler, with a fake of its own."""
    case = Selection(6, 16, TopKConfig(top_k=4))
    rerouter = make_rerouter(make_config("2"), {0: case.config})
    open_gate(rerouter, *[True] * 6)
    eager = case.through(rerouter)
    torch._dynamo.reset()
    compiled = torch.compile(case.through, fullgraph=True, backend="eager")(rerouter)
    assert torch.equal(compiled[1], eager[1]) and torch.equal(compiled[0], eager[0])
    assert rerouter.report()["calls"] == 2


@pytest.mark.parametrize("name", ROUTERS)
def test_trial_passes_for_a_right_kernel(name):
    """Every kind of router, and the batch is fit to show a wrong one: no near-ties, rerouting."""
    router = ROUTERS[name]
    assert trial.disagreement(router, torch.device("cpu")) is None
    logits, bias, valid = trial.trial_batch(router)
    choice, _ = from_logits(logits, router.scoring, correction_bias=bias)
    choice = choice[~choice.isnan().any(-1)]
    assert choice.sort(-1).values.diff(dim=-1).min() > 1e-6
    assert 0 < valid.sum() < len(valid)


def test_kernel_that_fails_its_trial_is_not_used(interpreted, monkeypatch, caplog):
    """The reference runs, an error says so, and `/server_info` keeps saying it."""
    monkeypatch.setattr(layer_module, "disagreement", lambda router, device: "2 of 24 rows differ")
    monkeypatch.setattr(layer_module.launch, "reroute", lambda *a: pytest.fail("was launched"))
    case, rerouter = two_rows(), make_rerouter(make_config("1"))
    open_gate(rerouter, True, True)
    case.through(rerouter)
    assert "2 of 24 rows differ" in caplog.text
    assert "layer 0: the kernel failed its trial" in rerouter.report()["fallback"]


def test_router_that_the_kernel_does_not_take_falls_back(interpreted, monkeypatch):
    """Softmax with a bias, which only plain torch ranks as SGLang does."""
    monkeypatch.setattr(layer_module.launch, "reroute", lambda *a: pytest.fail("was launched"))
    config = TopKConfig(torch_native=True, correction_bias=torch.zeros(8))
    case, rerouter = two_rows(), make_rerouter(make_config("1"), {0: config})
    open_gate(rerouter, True, True)
    case.config = config
    case.through(rerouter)
    assert rerouter.report()["fallback"] == "layer 0: softmax with a correction bias"


def test_operator_is_registered_once():
    """A process may load this file twice: in the package, and in a patched SGLang."""
    before = torch.ops.sglang_oea.reroute.default
    importlib.reload(launch)
    assert torch.ops.sglang_oea.reroute.default is before
