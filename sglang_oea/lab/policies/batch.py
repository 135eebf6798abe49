"""What every policy sees and returns, and the few steps that several of them share.

A leading dimension G runs over independent decode batches: in an evaluation, the positions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from sglang_oea.core.routing import RENORMALIZE_EPSILON


class PolicyError(ValueError):
    """A parameter that does not fit the model: name, expected, got."""


class Selection(NamedTuple):
    """Experts and their weights, `[G, B, slots]`; id -1 is a slot left empty, of weight 0.

    Ids are distinct within a row. `slots` need not be K.
    """

    weights: torch.Tensor
    ids: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """One layer's stock routing of G batches of B rows, all float32 and int64."""

    # [G, B, N], what the router ranks by, -inf where it may not choose
    choice: torch.Tensor
    # [G, B, N], what weights are made of
    gate: torch.Tensor
    # [G, B, K], the stock selection, columns in any order
    ids: torch.Tensor
    weights: torch.Tensor
    renormalize: bool
    # this MoE layer's place among the `layers` of the model, 0 the first
    layer: int = 0
    layers: int = 1
    # [N, N], how alike the experts' outputs are; None unless a policy asked for it
    similarity: torch.Tensor | None = None

    @property
    def experts(self) -> int:
        """N."""
        return self.choice.shape[-1]

    @property
    def slots(self) -> int:
        """K."""
        return self.ids.shape[-1]

    @cached_property
    def order(self) -> torch.Tensor:
        """`[G, B, N]`: each row's experts by rank; on equal choice scores the lower id first."""
        return self.choice.sort(dim=-1, descending=True, stable=True).indices

    @cached_property
    def rank(self) -> torch.Tensor:
        """`[G, B, N]`: each expert's place in its row, 0 the best."""
        places = torch.arange(self.experts, device=self.order.device).expand_as(self.order)
        return torch.empty_like(self.order).scatter_(-1, self.order, places)

    @cached_property
    def own(self) -> torch.Tensor:
        """`[G, B, N]` bool: the stock selection."""
        return members(self.ids, self.experts)


def members(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """`[..., N]` bool: which experts are among `[..., slots]` ids; -1 is none."""
    # one column more than there are experts takes what is not counted
    hit = torch.zeros(*ids.shape[:-1], experts + 1, dtype=torch.bool, device=ids.device)
    return hit.scatter_(-1, ids.where(ids >= 0, experts), True)[..., :experts]


def active(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """T of each batch, `[G]`: distinct experts in `[G, B, slots]`; -1 is not counted."""
    return members(ids.flatten(-2), experts).sum(-1)


def best(batch: Batch, allowed: torch.Tensor, slots: int) -> torch.Tensor:
    """`[G, B, slots]`: each row's best-ranked allowed experts, -1 where it has fewer.

    `allowed` is `[G, B, N]` or, for all rows alike, `[G, 1, N]`. Never an expert at `-inf`.
    """
    choice = batch.choice.masked_fill(~allowed, -torch.inf)
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[..., :slots]
    return ids.masked_fill(choice.gather(-1, ids) == -torch.inf, -1)


def largest(score: torch.Tensor, count: int) -> torch.Tensor:
    """`[G, 1, N]` bool: the `count` experts of highest score `[G, N]`, lower ids first on a tie."""
    kept = score.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return members(kept, score.shape[-1]).unsqueeze(-2)


def weigh(batch: Batch, ids: torch.Tensor) -> Selection:
    """Gate scores of the chosen experts at the row's own scale, as OEA weighs (core/routing.py)."""
    gate = batch.gate.gather(-1, ids.clamp(min=0)).masked_fill(ids < 0, 0.0)
    divisor = gate if batch.renormalize else batch.gate.gather(-1, batch.ids)
    scale = batch.weights.sum(-1, keepdim=True) / (
        divisor.sum(-1, keepdim=True) + RENORMALIZE_EPSILON
    )
    return Selection(gate * scale, ids)


def require(holds: bool, name: str, expected: str, got: object) -> None:
    """Refuse a parameter."""
    if not holds:
        raise PolicyError(f"{name}: expected {expected}, got {got}")
