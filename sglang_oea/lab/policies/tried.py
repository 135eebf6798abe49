"""Ideas beyond the paper that did not beat OEA; `lab/README.md` has the figures.

Source: our own, from the open problems that the OEA paper names (arXiv 2511.02237): k0 by layer,
k0 by token, other weights after rerouting, smaller unions. Kept, so that anyone can repeat or
improve on them.
"""

import torch

from .batch import Batch, Selection, best, require, weigh
from .oea import oea


def lonely(batch: Batch, *, k0: int, ratio: float) -> Selection:
    """OEA without experts that one row alone asks for, where that row finds another one.

    Dropped from the union is an expert in a single baseline, not as that row's best, if one that
    stays in the union, and that the row does not keep, has `ratio` of its gate score or more.
    """
    require(k0 >= 1, "k0", "at least 1", k0)
    require(ratio >= 0, "ratio", "at least 0", ratio)
    baseline = batch.own & (batch.rank < k0)
    once = baseline & (baseline.sum(-2, keepdim=True) == 1) & (batch.rank > 0)
    union = baseline.any(-2, keepdim=True)
    stays = union & ~once.any(-2, keepdim=True)
    other = batch.gate.masked_fill(~stays | baseline, 0.0).amax(-1, keepdim=True)
    dropped = (once & (other >= ratio * batch.gate)).any(-2, keepdim=True)
    return weigh(batch, best(batch, union & ~dropped, batch.slots))


def demand(batch: Batch, *, keep: int, share: float) -> Selection:
    """A union of each row's `keep` best, and of what all rows together want.

    What is wanted: an expert whose weights, each row's adding up to 1, sum to `share` or more.
    """
    require(keep >= 1, "keep", "at least 1", keep)
    require(share > 0, "share", "above 0", share)
    of_row = batch.weights / batch.weights.sum(-1, keepdim=True)
    wanted = torch.zeros_like(batch.gate).scatter_(-1, batch.ids, of_row).sum(-2, keepdim=True)
    union = (batch.own & (batch.rank < keep)).any(-2, keepdim=True) | (wanted >= share)
    return weigh(batch, best(batch, union, batch.slots))


def min_p(batch: Batch, *, p: float) -> Selection:
    """OEA whose baselines are a row's experts of `p` times its heaviest weight or more.

    The first in rank is one of them whatever it weighs. Named after the sampling rule.
    """
    require(0 < p <= 1, "p", "above 0, at most 1", p)
    weight = torch.zeros_like(batch.gate).scatter_(-1, batch.ids, batch.weights)
    heavy = batch.own & (weight >= p * weight.amax(-1, keepdim=True))
    baseline = heavy | (batch.own & (batch.rank == 0))
    return weigh(batch, best(batch, baseline.any(-2, keepdim=True), batch.slots))


def by_layer(batch: Batch, *, k0s: str) -> Selection:
    """OEA with a k0 for each MoE layer, such as `5-4-4-3`."""
    parts = k0s.split("-")
    fits = len(parts) == batch.layers and all(part.isdigit() and int(part) for part in parts)
    require(fits, "k0s", f"{batch.layers} numbers from 1 on, joined by '-'", k0s)
    return oea(batch, k0=int(parts[batch.layer]))


def soft(batch: Batch, *, k0: int, weight: float) -> Selection:
    """OEA whose foreign experts, those that the row did not select, count `weight` times."""
    require(weight >= 0, "weight", "at least 0", weight)
    weights, ids = oea(batch, k0=k0)
    own = (ids.unsqueeze(-1) == batch.ids.unsqueeze(-2)).any(-1)
    changed = weights * torch.where(own, 1.0, weight)
    return Selection(changed * (weights.sum(-1, True) / changed.sum(-1, True)), ids)
