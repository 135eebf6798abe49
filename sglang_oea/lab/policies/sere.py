"""SERE-like: secondary experts are replaced by the most similar expert that is kept anyway.

Source: arXiv 2602.07616 and its code (github.com/JL-Cheng/SERE). Kept is the union of the rows'
`top` best experts. Every other selected expert is replaced by its most similar kept expert if their
similarity is at least `rho`; otherwise it is critical and stays. Weights are not changed and not
renormalised. How it was read: the slots of one row that meet in one expert are merged, their
weights added, which is what running the expert twice computes. Similarity is the cosine of two
experts' outputs on a calibration text (similarity.py), one of the three measures that the authors
offer; so `rho` is not on the scale of another measure.
"""

import torch

from .batch import Batch, Selection, require


def sere(batch: Batch, *, top: int, rho: float) -> Selection:
    """Keep the union of each row's `top` best experts; reroute the rest by similarity."""
    require(top >= 1, "top", "at least 1", top)
    require(batch.similarity is not None, "similarity", "a calibration text", "none")
    kept = (batch.own & (batch.rank < _last_rank(batch, top))).any(-2)
    # [G, N, N]: only kept experts can replace
    alike = batch.similarity.masked_fill(~kept.unsqueeze(-2), -torch.inf)
    value, nearest = alike.max(-1)
    itself = torch.arange(batch.experts, device=nearest.device)
    target = torch.where(kept | (value < rho), itself, nearest)

    ids = target.unsqueeze(-2).expand_as(batch.choice).gather(-1, batch.ids)
    merged = torch.zeros_like(batch.gate).scatter_add_(-1, ids, batch.weights)
    # the first slot of an expert takes the weight of all, the others stay empty
    same = ids.unsqueeze(-1) == ids.unsqueeze(-2)
    again = same.tril(diagonal=-1).any(-1)
    return Selection(
        merged.gather(-1, ids).masked_fill(again, 0.0),
        ids.masked_fill(again, -1),
    )


def _last_rank(batch: Batch, top: int) -> torch.Tensor:
    """`[G, B, 1]`: the rank up to which a row's own experts are its `top` best."""
    ranks = batch.rank.gather(-1, batch.ids).sort(-1).values
    return ranks[..., min(top, batch.slots) - 1 :][..., :1] + 1
