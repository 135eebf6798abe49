"""`reroute_topk()`: the one call that a host makes after its top-k.

`Rerouter` is everything one process holds for one model: the gate, the k0 table, the counters, and
what is known of each MoE layer. A host builds it once the model is loaded and wraps the model's
`forward` with its gate.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import launch
from .config import Config, Refusal
from .gate import Gate, first_rows_valid
from .reference import reroute_selection
from .scores import Router, why_not
from .stats import Stats
from .trial import EXPERTS, disagreement
from .version import __version__

logger = logging.getLogger("sglang_oea")


@dataclass(frozen=True)
class Layer:
    """How one MoE layer routes, and why it is left alone, if it is."""

    router: Router | None
    why_not: str | None = None

    @classmethod
    def of(cls, topk_config: Any, moe_runner_backend: str | None = None) -> "Layer":
        """Decide once whether a layer with this `TopKConfig` can be rerouted, see `why_not`."""
        return cls(Router.of(topk_config), why_not(topk_config, moe_runner_backend))


class Rerouter:
    """OEA for the MoE layers of one loaded model.

    Args:
        config: the settings.
        layers: all MoE layers of the model, by the host's layer id.
        device: where the model runs.

    Raises:
        Refusal: `SGLANG_OEA_IMPL=triton` without CUDA, or a profile with a layer that is no MoE
            layer.
    """

    def __init__(
        self,
        config: Config,
        layers: Mapping[int, Layer],
        device: torch.device | str,
    ):
        device = torch.device(device)
        _refuse_unknown_layers(config, layers)
        self.config = config
        self.version = __version__
        self.impl = _implementation(config.impl, device)
        self.gate = Gate(config)
        self.layers = dict(layers)
        # layer id -> line of the tables
        self.index = {layer_id: line for line, layer_id in enumerate(sorted(layers))}
        self.k0 = config.k0.shown
        table = config.k0.table(sorted(layers), config.max_rows)
        self.k0_table = torch.tensor(table, dtype=torch.int32).to(device)
        self.stats = Stats(len(layers), device)
        self.scratch = launch.new_scratch(len(layers), launch.MAX_EXPERTS, device)
        # layer id -> why it was passed over while the gate was open
        self.observed: dict[int, str] = {}
        # layer id -> why the reference runs there instead of the kernel
        self.fallbacks = self._untrusted() if self.impl == "triton" else {}

    def set_k0(self, k0: int) -> None:
        """Use one k0 everywhere from the next step on; captured graphs see it too."""
        self.k0 = k0
        self.k0_table.fill_(min(k0, torch.iinfo(torch.int32).max))

    def reroute_topk(
        self,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        router_logits: torch.Tensor,
        topk_config: Any,
        layer_id: int | None,
        num_token_non_padded: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The stock selection of one layer, rerouted where OEA applies, and as it came elsewhere.

        Args:
            topk_weights, topk_ids: `[rows, K]`, or `[rows, K + shared]` with the shared experts'
                columns last.
            router_logits: `[rows, N]`.
            topk_config: SGLang's `TopKConfig`; only its correction bias is read here.
            layer_id: as SGLang numbers layers.
            num_token_non_padded: `[]` or `[1]` integer, the number of real rows where SGLang knows
                it.
        """
        layer = self.layers.get(layer_id)
        if layer is None or layer.why_not is not None or self.gate.open_rows is None:
            return topk_weights, topk_ids
        valid = self.valid_rows(layer_id, topk_ids.shape[0], num_token_non_padded)
        if valid is None:
            return topk_weights, topk_ids
        selection = (topk_weights, topk_ids, router_logits, topk_config.correction_bias)
        if self._takes_kernel(layer_id, layer.router, router_logits.shape[-1]):
            return self._kernel(layer_id, layer.router, valid, *selection)
        return self._reference(layer_id, layer.router, valid, *selection)

    def valid_rows(
        self, layer_id: int, rows: int, count: torch.Tensor | None
    ) -> torch.Tensor | None:
        """`[rows]` bool, or None where real rows cannot be told from padding."""
        valid = self.gate.open_rows
        if count is not None and rows <= self.config.max_rows:
            return first_rows_valid(rows, count)
        if valid.shape[0] != rows:
            # split or gathered since the model's forward began
            self.observed[layer_id] = f"it got {rows} rows of the forward's {valid.shape[0]}"
            return None
        return valid

    def _untrusted(self) -> dict[int, str]:
        """Layers whose kind of router the kernel gets wrong on this device: none, it is hoped."""
        kinds = {layer.router for layer in self.layers.values() if layer.why_not is None}
        found = {
            router: disagreement(router, self.k0_table.device)
            for router in kinds
            if launch.why_not(router, EXPERTS) is None
        }
        for reason in filter(None, found.values()):
            logger.error(
                "sglang_oea: plain torch instead of the kernel, which fails here: %s", reason
            )
        return {
            layer_id: f"the kernel failed its trial: {found[layer.router]}"
            for layer_id, layer in self.layers.items()
            if found.get(layer.router)
        }

    def _takes_kernel(self, layer_id: int, router: Router, experts: int) -> bool:
        if self.impl != "triton" or layer_id in self.fallbacks:
            return False
        reason = launch.why_not(router, experts)
        if reason is not None:
            self.fallbacks[layer_id] = reason
        return reason is None

    def _kernel(self, layer_id, router, valid, weights, ids, logits, bias):
        line = self.index[layer_id]
        return launch.reroute(
            logits,
            bias,
            ids,
            weights,
            valid,
            self.k0_table[line],
            self.stats.counters[line],
            self.scratch[line],
            router,
            self.config.max_rank,
        )

    def _reference(self, layer_id, router, valid, weights, ids, logits, bias):
        line = self.index[layer_id]
        new_weights, new_ids = reroute_selection(
            router,
            logits,
            bias,
            ids,
            weights,
            self.k0_table[line].gather(0, valid.sum(0, keepdim=True)),
            valid,
            self.config.max_rank,
        )
        routed = slice(0, router.slots)
        self.stats.add(line, ids[:, routed], new_ids[:, routed], valid, logits.shape[-1])
        return new_weights, new_ids

    def left_alone(self) -> dict[int, str]:
        """Why each layer that is known not to be rerouted is not, by layer id."""
        known = {i: layer.why_not for i, layer in self.layers.items() if layer.why_not}
        return self.observed | known

    def report(self) -> dict[str, Any]:
        """The `oea` field of `/server_info`. Synchronises: call it between two forwards."""
        reached, sums = self.stats.read()
        report = {
            "version": self.version,
            "enabled": True,
            "impl": self.impl,
            "k0": self.k0,
            "modes": list(self.config.modes),
            "layers": {"moe": len(self.layers), "rerouted": sum(reached)},
            **sums,
        }
        return report | {"fallback": describe(self.fallbacks)} if self.fallbacks else report


def describe(reasons: Mapping[int, str]) -> str:
    """`layers 3-5: reason; layer 7: reason`, so that 75 layers fit one line."""
    ranges: list[tuple[int, int, str]] = []
    for layer_id, reason in sorted(reasons.items()):
        if ranges and ranges[-1][1:] == (layer_id - 1, reason):
            ranges[-1] = (ranges[-1][0], layer_id, reason)
        else:
            ranges.append((layer_id, layer_id, reason))
    return "; ".join(
        (f"layer {first}" if first == last else f"layers {first}-{last}") + f": {reason}"
        for first, last, reason in ranges
    )


def _implementation(wanted: str, device: torch.device) -> str:
    on_cuda = device.type == "cuda" and torch.version.cuda is not None
    if wanted == "triton" and not on_cuda:
        raise Refusal(
            "the Triton kernel cannot run here",
            where="SGLANG_OEA_IMPL=triton",
            got=f"a model on {device}",
            expected="a model on a CUDA device",
            fix="unset SGLANG_OEA_IMPL: auto takes the kernel on CUDA and plain torch elsewhere",
        )
    return "triton" if on_cuda and wanted != "torch" else "torch"


def _refuse_unknown_layers(config: Config, layers: Mapping[int, Layer]) -> None:
    unknown = [layer_id for layer_id, _ in config.k0.layers if layer_id not in layers]
    if unknown:
        raise Refusal(
            "the profile names layers that are not MoE layers of this model",
            where=f"SGLANG_OEA_K0={config.k0.text}",
            got=f"layers {', '.join(map(str, unknown))}",
            expected=f"some of {', '.join(map(str, sorted(layers)))}",
            fix="use the profile that was made for this model",
        )
