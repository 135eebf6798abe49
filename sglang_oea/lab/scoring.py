"""How a router scores: not trusted from its name, but found by recomputing what it chose.

Each combination of a scoring function of `core/scores.py` with and without renormalisation is tried
on what a layer saw. The one that gives the ids and the weights which the model handed to its
experts is the router's; none is a refusal.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from sglang_oea.core.scores import SCORING_FUNCTIONS, from_logits

from .errors import LabError
from .layers import Layer
from .seam import Seen

# how far a chosen expert's choice score may lie below the best one left out, as a part of the best
# score: rounding decides between such two
TIE = 1e-5


@dataclass(frozen=True)
class Scoring:
    """One layer's scoring."""

    function: str
    renormalize: bool
    bias: torch.Tensor | None
    groups: int
    topk_group: int

    def scores(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(choice, gate)` for logits `[..., rows, N]`."""
        return from_logits(
            logits,
            self.function,
            correction_bias=self.bias,
            num_expert_group=self.groups,
            topk_group=self.topk_group,
        )


def prove(layer: Layer, seen: Seen, config: Any) -> Scoring:
    """The scoring that explains a layer's selection.

    Args:
        seen: rows of a real forward.
        config: the model's, for the groups of a group-limited router.

    Raises:
        LabError: none does.
    """
    groups = getattr(config, "n_group", None) or 1
    topk_group = getattr(config, "topk_group", None) or 1
    mismatches = []
    for function, renormalize in itertools.product(SCORING_FUNCTIONS, (True, False)):
        scoring = Scoring(function, renormalize, layer.bias, groups, topk_group)
        mismatch = _mismatch(scoring, seen)
        if mismatch is None:
            return scoring
        mismatches.append(f"{function}{', renormalised' if renormalize else ''}: {mismatch}")
    raise LabError(
        "a router's selection cannot be recomputed from its logits",
        where=f"{layer.name} ({type(layer.router).__name__})",
        got="; ".join(mismatches),
        expected="softmax, sigmoid or sqrtsoftplus, with the model's bias and groups, then top-K",
        fix="evaluate a model of another family; policies rank by scores that must be the model's",
    )


def _mismatch(scoring: Scoring, seen: Seen) -> str | None:
    """What this scoring gets wrong, or None."""
    choice, gate = scoring.scores(seen.logits)
    if seen.ids.max() >= choice.shape[-1]:
        return f"id {int(seen.ids.max())} of {choice.shape[-1]} logits"
    chosen = torch.zeros_like(choice, dtype=torch.bool).scatter_(-1, seen.ids, True)
    worst = choice.masked_fill(~chosen, torch.inf).amin(-1)
    left_out = choice.masked_fill(chosen, -torch.inf).amax(-1)
    wrong = (worst < left_out - TIE * choice.amax(-1).abs()) | (
        chosen.sum(-1) != seen.ids.shape[-1]
    )
    if wrong.any():
        return f"other experts in {int(wrong.sum())} of {len(wrong)} rows"
    raw = gate.gather(-1, seen.ids)
    raw = raw / raw.sum(-1, keepdim=True) if scoring.renormalize else raw
    weights = seen.weights.float()
    # a factor that all weights share (routed_scaling_factor) is the model's own business
    expected = raw * (weights.sum() / raw.sum())
    tolerance = 8 * torch.finfo(seen.weights.dtype).eps
    off = ((weights - expected).abs() / expected.abs().amax(-1, keepdim=True)).max()
    return None if off <= tolerance else f"weights differ by up to {float(off):.2g} of the largest"
