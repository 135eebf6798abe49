"""`Rerouter.reroute_topk()`: what it passes over, and the reason that it gives."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from stubs import (
    Selection,
    TopKConfig,
    assert_refusal,
    is_untouched,
    make_config,
    make_rerouter,
    open_gate,
    two_rows,
)

from sglang_oea.core.evidence import Judge
from sglang_oea.core.layer import Layer


def test_closed_gate():
    """Holds that outside an applicable forward the same tensors come back, and nothing counts."""
    case, rerouter = two_rows(), make_rerouter(make_config("1"))
    assert is_untouched(case, case.through(rerouter))
    assert rerouter.stats.read()[0] == [False]


@dataclass
class RawLogits:
    """The backend that hands raw logits on as weights."""

    is_flashinfer_trtllm_routed: ClassVar = staticmethod(lambda: True)


def custom() -> TopKConfig:
    """A router with a function of its own."""
    return TopKConfig(custom_routing_function=max)


def raw_logits() -> TopKConfig:
    """A router whose weights are no weights."""
    config = TopKConfig(renormalize=False)
    config.runner_backend = RawLogits()
    return config


@pytest.mark.parametrize(
    ("layer_id", "entry", "reason"),
    [
        (None, TopKConfig(), None),
        (7, TopKConfig(), None),
        (0, Layer(None, "its kernel routes"), "its kernel routes"),
        (0, Layer(None, "its router is fused"), "its router is fused"),
        (0, custom(), "a custom routing function"),
        (0, TopKConfig(scoring_func="tanh"), "'tanh'"),
        (0, TopKConfig(correction_bias=torch.ones(8)), "softmax with a correction bias"),
        (0, raw_logits(), "raw logits"),
    ],
)
def test_layers_left_alone(layer_id, entry, reason):
    """Holds that an unknown layer, or one whose scores are not known, is passed over and named."""
    case, rerouter = two_rows(), make_rerouter(make_config("1"), {0: entry})
    open_gate(rerouter, True, True)
    assert is_untouched(case, case.through(rerouter, layer_id))
    assert rerouter.stats.read()[0] == [False]
    if reason is None:
        assert rerouter.left_alone() == {}
    else:
        assert reason in rerouter.left_alone()[0]
        assert_refusal(Judge(rerouter).before_serving(), "no MoE layer", reason)


def test_bias_on_torch_native_softmax_is_rerouted():
    """Holds that softmax with a bias is left alone only where the backend ignores the bias."""
    config = TopKConfig(correction_bias=torch.zeros(8), torch_native=True)
    case, rerouter = two_rows(), make_rerouter(make_config("1"), {0: config})
    open_gate(rerouter, True, True)
    case.config = config
    assert case.through(rerouter)[1].tolist() == [[0, 6], [6, 0]]


def test_other_number_of_rows():
    """Holds that rows split or gathered since the forward began are passed over, with a reason."""
    case, rerouter = two_rows(), make_rerouter(make_config("1", max_rows=4))
    open_gate(rerouter, True, True, True)
    assert is_untouched(case, case.through(rerouter))
    assert rerouter.left_alone() == {0: "it got 2 rows of the forward's 3"}
    # more rows than the table has entries, although SGLang says how many are real
    wide = Selection(5, 8, TopKConfig())
    assert is_untouched(wide, wide.through(rerouter, count=torch.tensor(2)))
    assert rerouter.stats.read()[0] == [False]
