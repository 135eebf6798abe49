"""XShare-like: the experts with the most gate mass over the batch, and top-K within them.

Source: arXiv 2602.07265 (greedy selection that maximises the total gating score; for a sum that is
the `budget` largest columns). How it was read: the mass of an expert is the sum of its gate scores
over all rows, whether they selected it or not, but not of rows whose groups exclude it; rows rank
the kept experts by choice score, so a correction bias still counts there. T is at most `budget`,
which can be more than stock's T. Not read: the paper's warm-up and refinement, and its hierarchy
for speculative decoding.
"""

from .batch import Batch, Selection, best, largest, require, weigh


def xshare(batch: Batch, *, budget: int) -> Selection:
    """Keep the `budget` experts of the highest summed gate score."""
    require(budget >= 1, "budget", "at least 1", budget)
    mass = batch.gate.masked_fill(batch.choice == -float("inf"), 0.0).sum(-2)
    return weigh(batch, best(batch, largest(mass, budget), batch.slots))
