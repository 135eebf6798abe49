"""The MoE layers of a model that SGLang has loaded, and how each hands its routing on."""

from typing import Any

import torch

from .config import Refusal
from .layer import Layer


def moe_layers(
    model: torch.nn.Module,
    topk_type: type[torch.nn.Module],
    experts_type: type[torch.nn.Module],
    moe_runner_backend: str | None = None,
) -> dict[int, Layer]:
    """The target model's MoE layers, by SGLang's layer id.

    A layer counts as MoE by its experts (`FusedMoE`); one without a `TopK` of its own routes inside
    the model.

    Args:
        model: as SGLang has loaded it.
        topk_type, experts_type: SGLang's `TopK` and `FusedMoE`.
        moe_runner_backend: the server's, see `scores.why_not`.

    Raises:
        Refusal: two routers share a layer id, so their layers cannot be told apart.
    """
    routed: dict[int, Layer] = {}
    fused: dict[int, Layer] = {}
    for module in model.modules():
        if isinstance(module, topk_type) and not getattr(module, "is_draft", False):
            if module.layer_id is None or module.layer_id in routed:
                raise _nameless(module.layer_id)
            routed[module.layer_id] = _layer_of(module.topk_config, moe_runner_backend)
        elif isinstance(module, experts_type) and not getattr(module, "is_shared_fused_moe", False):
            fused[module.layer_id] = Layer(None, "its router is fused into the model")
    return fused | routed


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model computes: parameters that are offloaded to the CPU do not tell."""
    devices = [parameter.device for parameter in model.parameters()]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def _layer_of(topk_config: Any, moe_runner_backend: str | None) -> Layer:
    # no output format yet: it is decided at the first call, and judged by evidence then
    output_format = topk_config.output_format
    if output_format is None or output_format.name == "STANDARD":
        return Layer.of(topk_config, moe_runner_backend)
    return Layer(None, f"its backend routes inside its kernel (top-k output {output_format.name})")


def _nameless(layer_id: int | None) -> Refusal:
    return Refusal(
        "the MoE layers of this model cannot be told apart",
        where="the loaded model",
        got="a router without a layer id" if layer_id is None else f"two routers {layer_id}",
        expected="one router for each layer id",
        fix="serve this model without SGLANG_OEA_K0",
    )
