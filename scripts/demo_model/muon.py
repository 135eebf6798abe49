"""Muon for stacks of matrices: the experts of a layer are one tensor, and each has its own update.

torch.optim.Muon takes single matrices only. Momentum, then the nearest semi-orthogonal matrix by
Newton-Schulz iteration (Jordan 2024), scaled to the size of an AdamW update, with decoupled weight
decay (Liu et al. 2025, arXiv 2502.16982), so that one learning rate serves both optimisers.
"""

from collections.abc import Iterable

import torch

# of the quintic iteration: tuned by its author for speed, singular values end between 0.7 and 1.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """About the nearest semi-orthogonal matrix of each `[..., rows, columns]`, in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """For parameters of two or more dimensions, the last two being a matrix."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                mean = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                # nesterov: a look ahead along the momentum
                update = orthogonal(weight.grad.lerp(mean, group["momentum"]))
                size = 0.2 * max(weight.shape[-2:]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * size)
