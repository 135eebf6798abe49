"""Stock: what the model does by itself."""

from .batch import Batch, Selection


def stock(batch: Batch) -> Selection:
    """Return the router's own selection, untouched."""
    return Selection(batch.weights, batch.ids)
