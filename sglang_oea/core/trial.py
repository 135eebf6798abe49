"""A trial of the kernel on its device, against the reference, before it is trusted there.

Compilers and drivers differ, and a wrong expert id would go unnoticed in every answer. The trial
costs one small compilation and one launch at load.
"""

import torch

from . import launch
from .routing import reroute
from .scores import Router
from .stats import COLUMNS, Stats

ROWS, EXPERTS, K0 = 24, 64, 3


def trial_batch(router: Router) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Seeded `(router_logits [ROWS, EXPERTS], bias, valid [ROWS])`, no near-ties, one NaN row."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(ROWS, EXPERTS, generator=generator).argsort(-1)
    logits = torch.linspace(-2, 2, EXPERTS)[order]
    logits[5, :4] = torch.nan
    bias = torch.linspace(-0.1, 0.1, EXPERTS) if router.biased else None
    return logits, bias, torch.rand(ROWS, generator=generator) < 0.8


def disagreement(router: Router, device: torch.device) -> str | None:
    """What the kernel does otherwise than the reference, or None. Synchronises."""
    logits, bias, valid = (None if t is None else t.to(device) for t in trial_batch(router))
    choice, gate = router.scores(logits, bias)
    ids = choice.topk(router.slots).indices.int()
    weights = gate.gather(-1, ids.long())
    # rows of invariants 9 and 10: what they hold must not spread
    ids[7, 0] = -1
    weights.masked_fill_(~valid.unsqueeze(-1), torch.nan)
    want_weights, want_ids = reroute(
        choice, gate, ids, weights, K0, renormalize=router.renormalize, valid=valid
    )
    stats = Stats(1, device)
    stats.add(0, ids, want_ids, valid, EXPERTS)
    counters = torch.zeros(len(COLUMNS), dtype=torch.int64, device=device)
    scratch = launch.new_scratch(1, EXPERTS, device)[0]
    table = torch.full((ROWS + 1,), K0, dtype=torch.int32, device=device)

    got_weights, got_ids = launch.reroute(
        logits, bias, ids, weights, valid, table, counters, scratch, router
    )

    if not torch.equal(got_ids, want_ids):
        return f"{(got_ids != want_ids).any(-1).sum().item()} of {ROWS} rows have other experts"
    if not torch.allclose(got_weights, want_weights, rtol=1e-5, atol=1e-7, equal_nan=True):
        return "its weights differ"
    if not torch.equal(counters, stats.counters[0]):
        return "its counters differ"
    return None
