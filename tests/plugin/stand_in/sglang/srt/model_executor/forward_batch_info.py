"""What one forward is given."""

from dataclasses import dataclass
from enum import IntEnum, auto

import torch


class ForwardMode(IntEnum):
    """Which kind of forward this is."""

    EXTEND = auto()
    DECODE = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()

    def is_decode(self):
        """One token a request."""
        return self == ForwardMode.DECODE

    def is_target_verify(self):
        """A speculative target that checks what a draft proposed."""
        return self == ForwardMode.TARGET_VERIFY


@dataclass
class ForwardBatch:
    """`[rows]` each: slot 0 of the cache is what padding rows write to."""

    forward_mode: ForwardMode
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
