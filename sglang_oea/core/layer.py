"""`reroute_topk()`: the one call that a host makes after its top-k.

`Rerouter` is everything one process holds for one model: the gate, the k0 table, the counters, and
what is known of each MoE layer. A host builds it once the model is loaded, wraps the model's
`forward` with its gate, and makes it the process's active one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .config import Config
from .gate import Gate, first_rows_valid
from .routing import reroute
from .scores import Router, from_logits, why_not
from .stats import Stats


@dataclass(frozen=True)
class Layer:
    """One MoE layer: its line in the tables, how it routes, and why it is left alone, if it is."""

    line: int
    router: Router | None
    why_not: str | None

    @classmethod
    def of(cls, line: int, topk_config: Any, why_bypassed: str | None) -> "Layer":
        """Decide once whether a layer with this router can be rerouted."""
        if why_bypassed is not None:
            return cls(line, None, why_bypassed)
        return cls(line, Router.of(topk_config), why_not(topk_config))


class Rerouter:
    """OEA for the MoE layers of one loaded model.

    Args:
        config: the settings.
        layers: layer id -> (`TopKConfig` or None, why routing bypasses the host's top-k or None),
            of all MoE layers.
        device: where the model runs.
        version: of the package, for `/server_info`.
    """

    def __init__(
        self,
        config: Config,
        layers: Mapping[int, tuple[Any, str | None]],
        device: torch.device | str,
        version: str,
    ):
        self.config = config
        self.version = version
        self.impl = "torch"
        self.gate = Gate(config)
        self.layers = {
            layer_id: Layer.of(line, *layers[layer_id])
            for line, layer_id in enumerate(sorted(layers))
        }
        self.k0 = config.k0.shown
        self.k0_table = torch.tensor(
            config.k0.table(
                {layer_id: layer.line for layer_id, layer in self.layers.items()}, config.max_rows
            ),
            dtype=torch.int32,
        ).to(device)
        self.stats = Stats(len(self.layers), torch.device(device))
        # layer id -> why it was passed over while the gate was open
        self.observed: dict[int, str] = {}

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
        valid = self.gate.open_rows
        layer = self.layers.get(layer_id)
        if valid is None or layer is None or layer.why_not is not None:
            return topk_weights, topk_ids
        rows = topk_ids.shape[0]
        if num_token_non_padded is not None and rows <= self.config.max_rows:
            valid = first_rows_valid(rows, num_token_non_padded)
        if valid.shape[0] != rows:
            # split or gathered since the model's forward began: real rows cannot be told from
            # padding
            self.observed[layer_id] = f"it got {rows} rows of the forward's {valid.shape[0]}"
            return topk_weights, topk_ids

        router = layer.router
        choice, gate = from_logits(
            router_logits,
            router.scoring,
            correction_bias=topk_config.correction_bias,
            num_expert_group=router.num_expert_group,
            topk_group=router.topk_group,
        )
        routed = slice(0, router.slots)
        weights, ids = reroute(
            choice,
            gate,
            topk_ids[:, routed],
            topk_weights[:, routed],
            self.k0_table[layer.line].gather(0, valid.sum(0, keepdim=True)),
            renormalize=router.renormalize,
            valid=valid,
            max_rank=self.config.max_rank,
        )
        self.stats.add(layer.line, topk_ids[:, routed], ids, valid, router_logits.shape[-1])
        if topk_ids.shape[-1] > router.slots:
            ids = torch.cat([ids, topk_ids[:, router.slots :]], dim=-1)
            weights = torch.cat([weights, topk_weights[:, router.slots :]], dim=-1)
        return weights, ids

    def left_alone(self) -> dict[int, str]:
        """Why each layer that is known not to be rerouted is not, by layer id."""
        known = {i: layer.why_not for i, layer in self.layers.items() if layer.why_not}
        return self.observed | known

    def report(self) -> dict[str, Any]:
        """The `oea` field of `/server_info`. Synchronises: call it on the forward stream."""
        return {
            "version": self.version,
            "enabled": True,
            "impl": self.impl,
            "k0": self.k0,
            "modes": list(self.config.modes),
            "layers": {"moe": len(self.layers), "rerouted": sum(self.stats.layers_reached())},
            **self.stats.totals(),
        }
