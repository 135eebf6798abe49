"""The verdict after the first applicable forward: refused, in part, or on, and said once."""

import pytest
import torch
from stubs import TopKConfig, assert_refusal, make_config, make_rerouter

from sglang_oea.core.evidence import UNREACHED, Judge
from sglang_oea.core.layer import Layer, Rerouter, describe
from sglang_oea.core.version import __version__

GOOD, FUSED = TopKConfig(), Layer(None, "its router is fused into the model")


def reach(rerouter: Rerouter, *layer_ids: int) -> None:
    """As when the routing step ran in these layers, in warm-up too."""
    ids = torch.tensor([[0, 1]])
    for layer_id in layer_ids:
        line = rerouter.index[layer_id]
        rerouter.stats.add(line, ids, ids, torch.tensor([False]), 8)


def judge(*good: int, fused: tuple[int, ...] = (), reached: tuple[int, ...] = ()) -> Judge:
    """The judge of a model with these layers, some of which were reached."""
    layers = dict.fromkeys(good, GOOD) | dict.fromkeys(fused, FUSED)
    rerouter = make_rerouter(make_config("4"), layers)
    reach(rerouter, *reached)
    return Judge(rerouter)


@pytest.fixture(autouse=True)
def log(caplog):
    """Everything that is logged, from info on."""
    caplog.set_level("INFO", logger="sglang_oea")
    return caplog


def test_nothing_reached(log):
    """Holds that a gate that opened over no rerouted layer is refused, naming the flag to try."""
    verdict = judge(3, 4, fused=(5,)).after_forward()
    reasons = f"layers 3-4: {UNREACHED}; layer 5: {FUSED.why_not}"
    assert_refusal(verdict, "no MoE layer", reasons, "--moe-runner-backend", "unset SGLANG_OEA_K0")
    assert not log.records


def test_some_reached(log):
    """Holds that an error names the layers that stay stock and why, and that the rest is on."""
    judged = judge(1, 2, 3, fused=(4,), reached=(1, 3))
    judged.rerouter.observed[2] = "it got 2 rows of the forward's 3"
    assert judged.after_forward() is None
    error, info = log.records
    assert (error.levelname, info.levelname) == ("ERROR", "INFO")
    assert "2 of 4 MoE layers are not rerouted" in error.getMessage()
    said = f"layer 2: {judged.rerouter.observed[2]}; layer 4: {FUSED.why_not}"
    assert said in error.getMessage()
    assert "2 of 4 MoE layers rerouted" in info.getMessage()


def test_a_layer_that_was_reached_is_rerouted(log):
    """Holds that evidence decides: a reason seen in one forward does not outweigh another."""
    judged = judge(1, reached=(1,))
    judged.rerouter.observed[1] = "its bias differs by token"
    assert judged.after_forward() is None
    assert [record.levelname for record in log.records] == ["INFO"]


def test_all_reached(log):
    """Holds the one line of proof: version, k0, modes, implementation, layers; once."""
    judged = judge(1, 2, reached=(1, 2))
    for _ in range(3):
        assert judged.after_forward() is None
    (info,) = log.records
    for part in (
        f"{__version__} is on",
        "k0=4",
        "modes=decode",
        "impl=torch",
        "2 of 2 MoE layers rerouted",
    ):
        assert part in info.getMessage()
    assert (info.levelname, info.name) == ("INFO", "sglang_oea")
    assert "\n" not in info.getMessage()


def test_a_refusal_is_given_once():
    """Holds that with SGLANG_OEA_STRICT=0 a stock server does not log a refusal a token."""
    judged = judge(1)
    assert judged.after_forward() is not None
    assert judged.after_forward() is None


def test_nothing_while_capturing(monkeypatch, log):
    """Holds that a capture, in which reading would synchronise, is not judged."""
    judged = judge(1)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(judged.rerouter.stats, "read", lambda: pytest.fail("read"))
        assert judged.after_forward() is None
    assert not log.records
    # and the next forward is
    assert_refusal(judged.after_forward())


def test_before_serving():
    """Holds that at load only what is already certain is refused."""
    assert_refusal(judge(fused=(2, 3)).before_serving(), f"layers 2-3: {FUSED.why_not}")
    assert judge(1, fused=(2, 3)).before_serving() is None
    assert judge(1, 2).before_serving() is None
    # a dense model
    dense = Rerouter(make_config("4"), {}, "cpu")
    assert_refusal(Judge(dense).before_serving(), "a model without MoE layers")


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ({}, ""),
        ({7: "a"}, "layer 7: a"),
        ({4: "a", 3: "a", 5: "a"}, "layers 3-5: a"),
        ({3: "a", 5: "a"}, "layer 3: a; layer 5: a"),
        ({3: "a", 4: "b", 5: "b", 6: "a"}, "layer 3: a; layers 4-5: b; layer 6: a"),
        (dict.fromkeys(range(3, 78), "a"), "layers 3-77: a"),
    ],
)
def test_describe(reasons, text):
    """Holds that neighbouring layers with one reason fold into a range, in order."""
    assert describe(reasons) == text
