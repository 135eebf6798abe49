"""One layer's step in plain torch: from router logits and the stock selection to what is executed.

What the kernel equals (`kernel.py`), what a server without it runs, and what the lab replays.
"""

import torch

from .routing import reroute
from .scores import Router


def reroute_selection(
    router: Router,
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor | None,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    k0: torch.Tensor,
    valid: torch.Tensor,
    max_rank: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(topk_weights, topk_ids)`, rerouted; shared experts' columns, the last ones, as they came.

    Args:
        router_logits: `[rows, N]`.
        correction_bias: `[N]` or None.
        topk_ids, topk_weights: `[rows, K + shared]`, the stock selection.
        k0: `[]` or `[1]` or `[rows]` integer.
        valid: `[rows]` bool.
        max_rank: see `routing.reroute`.
    """
    choice, gate = router.scores(router_logits, correction_bias)
    routed, shared = slice(0, router.slots), slice(router.slots, None)
    weights, ids = reroute(
        choice,
        gate,
        topk_ids[:, routed],
        topk_weights[:, routed],
        k0,
        renormalize=router.renormalize,
        valid=valid,
        max_rank=max_rank,
    )
    if topk_ids.shape[-1] > router.slots:
        ids = torch.cat([ids, topk_ids[:, shared]], dim=-1)
        weights = torch.cat([weights, topk_weights[:, shared]], dim=-1)
    return weights, ids
