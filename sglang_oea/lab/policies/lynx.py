"""Lynx-like: the experts that the batch wants least are dropped, their rows remapped.

Source: arXiv 2411.08982. How it was read: an expert is wanted by as many rows as selected it; among
equals, by the gate scores of those rows. The `budget` most wanted of the active experts are kept. A
row falls back to its next kept experts in rank, and loses the slot only where the budget is below
K. Weights are made anew as OEA's are (the paper renormalises). Not read: AffinityBinning, which
weighs assignments by gaps between logits, and the choice of phases.
"""

from .batch import Batch, Selection, best, largest, require, weigh


def lynx(batch: Batch, *, budget: int) -> Selection:
    """Keep at most `budget` of the experts that are active."""
    require(budget >= 1, "budget", "at least 1", budget)
    rows = batch.own.sum(-2)
    mass = batch.gate.where(batch.own, 0).double().sum(-2)
    # below one, so that mass only decides among experts of as many rows
    wanted = rows + mass / (mass.sum(-1, keepdim=True) + 1)
    return weigh(batch, best(batch, largest(wanted, budget), batch.slots))
