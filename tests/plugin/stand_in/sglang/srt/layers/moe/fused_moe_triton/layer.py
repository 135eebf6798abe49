"""The experts of a layer."""

import torch

# as modules of 0.5.9 do, this binds the function before anything can be hooked
from sglang.srt.layers.moe.topk import select_experts

__all__ = ["FusedMoE", "select_experts"]


class FusedMoE(torch.nn.Module):
    """Every expert adds a vector of its own, at the router's weight."""

    def __init__(self, num_experts, hidden_size, layer_id):
        super().__init__()
        self.layer_id = layer_id
        self.experts = torch.nn.Parameter(torch.randn(num_experts, hidden_size))

    def forward(self, hidden_states, topk_output):
        """`[rows, hidden]`; a negative id adds nothing."""
        weights = topk_output.topk_weights * (topk_output.topk_ids >= 0)
        chosen = self.experts[topk_output.topk_ids.long().clamp(min=0)]
        return hidden_states + (weights.unsqueeze(-1) * chosen).sum(-2)
