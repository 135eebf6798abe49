"""The MoE layers of a model that SGLang has loaded, and how each hands its routing on."""

from typing import Any

import torch

MoeLayers = dict[int, tuple[Any, str | None]]


def moe_layers(model: torch.nn.Module) -> MoeLayers:
    """Layer id -> (`TopKConfig` or None, why its routing bypasses `select_experts` or None).

    A layer counts as MoE by its experts (`FusedMoE`); one without a `TopK` of its own routes inside
    the model.
    """
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import TopK

    layers: MoeLayers = {}
    for module in model.modules():
        if isinstance(module, TopK) and not getattr(module, "is_draft", False):
            config = module.topk_config
            layers[module.layer_id] = (config, _why_bypassed(config.output_format))
        elif isinstance(module, FusedMoE) and not getattr(module, "is_shared_fused_moe", False):
            layers.setdefault(module.layer_id, (None, "its router is fused into the model"))
    return {layer_id: layer for layer_id, layer in layers.items() if layer_id is not None}


def _why_bypassed(output_format: Any) -> str | None:
    # None is decided at the first call, and decided by evidence then
    if output_format is None or output_format.name == "STANDARD":
        return None
    return f"its backend routes inside its kernel (top-k output {output_format.name})"
