"""Finds the Mixture-of-Experts layers of a transformers model.

A layer is a module with a child `experts` and a router beside it. In transformers 5 such experts
take `(hidden_states, top_k_index, top_k_weights)`; that a layer really is called so is seen when
the seam is used, and what its router computes is proven in scoring.py.
"""

from dataclasses import dataclass
from typing import Any

import torch

from .errors import LabError

ROUTERS = ("gate", "router")
BIAS = "e_score_correction_bias"


@dataclass(frozen=True)
class Layer:
    """One MoE layer: its name in the model, and the two modules between which selections pass."""

    name: str
    router: torch.nn.Module
    experts: torch.nn.Module
    bias: torch.Tensor | None


def find(model: Any) -> list[Layer]:
    """All MoE layers, first layer first.

    Raises:
        LabError: a dense model, or experts without a router that can be reached.
    """
    blocks = [
        (name, block)
        for name, block in model.named_modules()
        if isinstance(getattr(block, "experts", None), torch.nn.Module)
    ]
    if not blocks:
        raise LabError(
            "the model is not a Mixture of Experts",
            where=type(model).__name__,
            got="no module with experts",
            expected="at least one MoE layer",
            fix="name another checkpoint with --model; a dense model has nothing to reroute",
        )
    return [_layer(name, block) for name, block in blocks]


def _layer(name: str, block: torch.nn.Module) -> Layer:
    children = dict(block.named_children())
    router = next((children[r] for r in ROUTERS if r in children), None)
    if router is None:
        raise LabError(
            "the router of a layer cannot be reached",
            where=f"{name} ({type(block).__name__})",
            got=f"children {', '.join(children)}",
            expected=f"experts, and a router named {' or '.join(ROUTERS)}",
            fix="evaluate a model of another family",
        )
    buffers = [*router.named_buffers(), *router.named_parameters()]
    buffers += [*block.named_buffers(recurse=False), *block.named_parameters(recurse=False)]
    bias = next((tensor for key, tensor in buffers if key == BIAS), None)
    return Layer(name, router, children["experts"], bias)
