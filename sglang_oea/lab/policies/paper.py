"""OEA in the paper's general form: arXiv 2511.02237, algorithm 2, with its four parameters.

How it was read:
- A row that finds fewer than kmax experts keeps fewer; nothing completes it.
- At most kmax experts a row (the printed test would allow one more, the text does not).
- p is a share of the row's gate scores over all N experts, added up in rank order. For softmax that
  is the paper's sum; sigmoid scores do not add up to one, so they are divided by their sum.
- p = 1 means no limit by p, also where rounding reaches 1 early.
"""

from .batch import Batch, Selection, best, require, weigh


def paper(
    batch: Batch,
    *,
    k0: int,
    p: float = 1.0,
    kmax: int | None = None,
    max_rank: int | None = None,
) -> Selection:
    """Baselines of `min(k0, experts that reach p)`, filled from the union up to kmax (default: K).

    The union is searched over the first `max_rank` experts in rank (default: N).
    """
    kmax = batch.slots if kmax is None else kmax
    require(kmax <= batch.experts, "kmax", f"at most N={batch.experts}", kmax)
    require(1 <= k0 <= kmax, "k0", f"1 to kmax={kmax}", k0)
    require(0 < p <= 1, "p", "above 0, at most 1", p)
    require(max_rank is None or max_rank >= 1, "max_rank", "at least 1", max_rank)
    baseline = batch.rank < k0
    if p < 1:
        share = batch.gate.gather(-1, batch.order).cumsum(-1)
        # [G, B, 1]: how many experts, the best first, it takes to reach p of the whole
        reached = 1 + (share < p * share[..., -1:]).sum(-1, keepdim=True)
        baseline = baseline & (batch.rank < reached)
    union = baseline.any(-2, keepdim=True)
    found = union if max_rank is None else union & (batch.rank < max_rank)
    return weigh(batch, best(batch, baseline | found, kmax))
