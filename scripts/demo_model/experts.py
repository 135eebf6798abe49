"""Experts that train quickly on a CPU, as one more experts implementation of transformers.

`grouped_mm`, the quickest that transformers brings, gathers rows by indexing. The gradient of that
is slow on a CPU, and with threads not the same twice. Gathered as an embedding, it is neither.
"""

from typing import Any

import torch
from torch.nn.functional import embedding, grouped_mm
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "embedding_gather"


def experts(
    layer: Any, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of each row's experts; `hidden` `[rows, H]`, the others `[rows, K]`."""
    # [rows * K], all rows of expert 0 first
    order = ids.flatten().argsort(stable=True)
    ends = ids.flatten().bincount(minlength=layer.num_experts).cumsum(0).int()
    # float32: products this small are slower in bfloat16
    x = embedding(order // ids.shape[1], hidden.float())
    x = grouped_mm(x, layer.gate_up_proj.mT, offs=ends)
    gate, up = x.chunk(2, dim=-1)
    x = grouped_mm(layer.act_fn(gate) * up, layer.down_proj.mT, offs=ends)
    back = embedding(order.argsort(), x).unflatten(0, ids.shape)
    return (weights.to(x.dtype).unsqueeze(1) @ back).squeeze(1)


ALL_EXPERTS_FUNCTIONS.register(NAME, experts)
