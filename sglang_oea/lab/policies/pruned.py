"""Pruned: fewer experts a token, whatever the rest of the batch does.

Source: the OEA paper's baseline (arXiv 2511.02237, "pruned", phase 1 only). Weights are made as
OEA's are, so that the two differ in the piggybacked experts alone.
"""

from .batch import Batch, Selection, best, require, weigh


def pruned(batch: Batch, *, k0: int) -> Selection:
    """Keep each row's k0 best experts; all other slots are gone."""
    require(k0 >= 1, "k0", "at least 1", k0)
    return weigh(batch, best(batch, batch.own, min(k0, batch.slots)))
