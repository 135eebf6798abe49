"""OEA as this package serves it: `core.routing.reroute` itself, not a copy.

Source: arXiv 2511.02237, algorithm 1, with a row that finds fewer than K experts in the union
completed by its own (`reroute`, invariant 4). So `max_rank` matters above K only: within its own K
best a row finds nothing that completing would not bring back, and the selection is stock. The
paper's maxP = K is `paper:max_rank=K`, which leaves such slots empty.
"""

from sglang_oea.core.routing import reroute

from .batch import Batch, Selection, require


def oea(batch: Batch, *, k0: int, max_rank: int | None = None) -> Selection:
    """Keep k0, fill from the union over the first `max_rank` experts in rank (default: N)."""
    require(k0 >= 1, "k0", "at least 1", k0)
    require(max_rank is None or max_rank >= 1, "max_rank", "at least 1", max_rank)
    return Selection(
        *reroute(
            batch.choice,
            batch.gate,
            batch.ids,
            batch.weights,
            k0,
            renormalize=batch.renormalize,
            max_rank=max_rank,
        )
    )
