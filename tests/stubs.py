"""Stand-ins for what a host hands to the core: modes, batches, routers, selections."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from sglang_oea.core.config import Config, Refusal, from_environment
from sglang_oea.core.layer import Layer, Rerouter
from sglang_oea.core.schedule import Schedule


@dataclass(frozen=True)
class Mode:
    """A forward mode, by the two questions that the gate asks."""

    name: str

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_target_verify(self) -> bool:
        return self.name == "verify"


@dataclass
class Batch:
    """SGLang's `ForwardBatch`: `out_cache_loc` `[rows]`, 0 where a row is padding."""

    forward_mode: Any
    out_cache_loc: torch.Tensor | None

    @classmethod
    def of(cls, mode: str, *slots: int) -> "Batch":
        return cls(Mode(mode), torch.tensor(slots, dtype=torch.int64))


@dataclass
class TopKConfig:
    """SGLang's `TopKConfig`: a renormalising softmax router, unless told otherwise."""

    top_k: int = 2
    use_grouped_topk: bool = False
    topk_group: int | None = None
    num_expert_group: int | None = None
    renormalize: bool = True
    num_fused_shared_experts: int = 0
    custom_routing_function: Any = None
    correction_bias: torch.Tensor | None = None
    torch_native: bool = False
    scoring_func: str = "softmax"
    output_format: Any = None


@dataclass
class Selection:
    """What a stock softmax router returns for `rows` rows, and the logits it saw."""

    rows: int
    experts: int
    config: TopKConfig
    seed: int = 0
    logits: torch.Tensor = field(init=False)
    ids: torch.Tensor = field(init=False)
    weights: torch.Tensor = field(init=False)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        self.logits = torch.randn(self.rows, self.experts, generator=generator)
        slots = self.config.top_k - self.config.num_fused_shared_experts
        weights, ids = self.logits.softmax(-1).topk(slots, dim=-1)
        self.weights, self.ids = weights / weights.sum(-1, keepdim=True), ids.int()

    def through(self, rerouter: Rerouter, layer_id: int | None = 0, count=None):
        """`(weights, ids)` after `reroute_topk`."""
        arguments = (self.weights, self.ids, self.logits, self.config, layer_id)
        return rerouter.reroute_topk(*arguments, count)


def make_config(k0: str = "1", **changes: Any) -> Config:
    """Settings as from an environment that sets `SGLANG_OEA_K0`."""
    return Config(k0=Schedule.parse(k0), **changes)


def make_rerouter(config: Config, layers: dict | None = None) -> Rerouter:
    """A rerouter on the CPU, for one MoE layer 0 if nothing else is said."""
    layers = {
        layer_id: layer if isinstance(layer, Layer) else Layer.of(layer)
        for layer_id, layer in (layers or {0: TopKConfig()}).items()
    }
    return Rerouter(config, layers, "cpu")


def open_gate(rerouter: Rerouter, *valid: bool) -> None:
    """As during an applicable forward with these rows."""
    rerouter.gate.open_rows = torch.tensor(valid, dtype=torch.bool)


def assert_refusal(refusal: BaseException | None, *said: str) -> None:
    """A refusal ends the process and says where, what, what else, and how to go on."""
    assert isinstance(refusal, Refusal) and isinstance(refusal, SystemExit)
    # a string as the code makes Python print it and exit with 1
    text = refusal.code
    assert isinstance(text, str) and text.startswith("sglang_oea: ")
    for part in ("where", "got", "expected", "fix"):
        assert re.search(rf"^  {part}: +\S", text, re.MULTILINE), f"no {part} in:\n{text}"
    for words in said:
        assert words in text, f"{words!r} is not said in:\n{text}"


def read(**settings: str) -> Config | None:
    """The settings of an environment that holds these variables and others' besides."""
    own = {f"SGLANG_OEA_{name}": value for name, value in settings.items()}
    return from_environment(own | {"PATH": "anywhere", "SGLANG_PORT": "1", "OEA_K0": "9"})


def refused(*said: str, **settings: str) -> None:
    """Reading these settings is refused in words that include `said`."""
    with pytest.raises(Refusal) as refusal:
        read(**settings)
    assert_refusal(refusal.value, *said)


# two rows of the default router, top 2 of 8, whose second choices differ
LOGITS = torch.tensor([[5.0, 4, 0, 1, 0, 0, 0, 0], [4.0, 0, 0, 0, 3, 0, 5, 0]])


def two_rows() -> Selection:
    """Stock {0, 1} and {6, 0}; with k0 = 1 the union is {0, 6}."""
    case = Selection(2, 8, TopKConfig())
    case.logits = LOGITS
    weights, ids = LOGITS.softmax(-1).topk(2, dim=-1)
    case.weights, case.ids = weights / weights.sum(-1, keepdim=True), ids.int()
    return case


def is_untouched(case: Selection, result: tuple) -> bool:
    """Whether the very tensors came back."""
    return result[0] is case.weights and result[1] is case.ids
