"""Which forwards are rerouted, and which of their rows are real tokens.

The forward mode is read from the batch that every runner of SGLang hands to the model's own
`forward`, eager and captured alike, so `wrap` on that one method is the whole seam. `open_rows` is
set for the time of an applicable forward and None otherwise; nothing else in the package knows
about forward modes.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .config import Config, Refusal

# SGLang reserves this slot of the KV pool, and points the rows that pad a captured graph at it
PADDING_SLOT = 0


class Gate:
    """Open during a decode (or verify) forward of at most `max_rows` rows."""

    def __init__(self, config: Config):
        self.modes = config.modes
        self.max_rows = config.max_rows
        # [rows] bool: the valid rows of the forward that runs now, or None outside an applicable
        # one
        self.open_rows: torch.Tensor | None = None

    def applies_to(self, forward_batch: Any) -> bool:
        """Whether a `ForwardBatch` is one to reroute, by its mode and its padded number of rows."""
        mode = forward_batch.forward_mode
        wanted = ("decode" in self.modes and mode.is_decode()) or (
            "verify" in self.modes and mode.is_target_verify()
        )
        return wanted and 0 < forward_batch.out_cache_loc.shape[0] <= self.max_rows

    def wrap(self, forward: Callable, after: Callable[[], None]) -> Callable:
        """The model's `forward`, with the gate open while an applicable batch runs through it.

        Args:
            forward: the bound method; its signature is kept, since SGLang inspects it.
            after: called after each applicable forward, with the gate closed again.

        Raises:
            Refusal: `forward` has no parameter `forward_batch`.
        """
        parameters = list(inspect.signature(forward).parameters)
        if "forward_batch" not in parameters:
            raise Refusal(
                "the model's forward cannot be watched",
                where=f"{forward.__qualname__}",
                got=f"parameters {', '.join(parameters)}",
                expected="a parameter forward_batch, as in every model of SGLang",
                fix="serve this model without SGLANG_OEA_K0",
            )
        position = parameters.index("forward_batch")

        @functools.wraps(forward)
        def gated(*args: Any, **kwargs: Any) -> Any:
            forward_batch = kwargs.get("forward_batch")
            if forward_batch is None:
                forward_batch = args[position]
            if not self.applies_to(forward_batch):
                return forward(*args, **kwargs)
            self.open_rows = forward_batch.out_cache_loc != PADDING_SLOT
            try:
                result = forward(*args, **kwargs)
            finally:
                self.open_rows = None
            after()
            return result

        return gated


def first_rows_valid(rows: int, count: torch.Tensor) -> torch.Tensor:
    """`[rows]` bool from SGLang's `num_token_non_padded`: the first `count` rows are real."""
    return torch.arange(rows, device=count.device) < count
