"""The specification: Opportunistic Expert Activation in plain torch.

`reroute` takes what a stock router chose and returns what is executed instead: every row keeps its
k0 best experts (the baseline), and fills its other slots from the union of all baselines (arXiv
2511.02237, algorithm 1). The file knows torch and nothing else: no environment, no host, no device.
Every operation is legal inside a CUDA graph: no synchronisation, no data-dependent shape, no host
read.

Not here: which forwards and rows it applies to (`gate.py`), where scores come from (`scores.py`).
"""

import torch

# what SGLang adds to the sum that it divides routing weights by
RENORMALIZE_EPSILON = 1e-20


def reroute(
    choice_scores: torch.Tensor,
    gate_scores: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    k0: int | torch.Tensor,
    *,
    renormalize: bool,
    valid: torch.Tensor | None = None,
    max_rank: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reroute one batch of rows, or `G` independent batches at once.

    Args:
        choice_scores: `[rows, N]` float, what the router ranks by; `-inf` where an expert may not
            be chosen.
        gate_scores: `[rows, N]` float, what weights are made of.
        topk_ids: `[rows, K]` integer, the stock selection, columns in any order.
        topk_weights: `[rows, K]` float, the stock weights.
        k0: baseline size. An int, or an integer tensor `[]` or `[rows]`. 0 leaves the row alone,
            `>= K` is stock.
        renormalize: whether the router divides a row's weights by their sum.
        valid: `[rows]` bool, False for padding. Default: all rows are valid.
        max_rank: piggyback only on a row's first `max_rank` experts in rank (the paper's maxP).
            Default: N.

    A leading dimension `G` on every tensor routes independent batches; `k0` is then `[]`, `[G, 1]`
    or `[G, rows]`.

    Returns:
        `(topk_weights, topk_ids)` in the shapes and dtypes that came in. A row whose set of experts
        did not change is returned bit for bit; a changed row lists baseline, piggybacked, then
        completing experts, each by rank.

    Raises:
        ValueError, TypeError: shapes, dtypes or settings that do not fit together.
    """
    _check(choice_scores, gate_scores, topk_ids, topk_weights, k0, valid, max_rank)
    experts, slots = choice_scores.shape[-1], topk_ids.shape[-1]
    if topk_ids.numel() == 0:
        return topk_weights.clone(), topk_ids.clone()

    choice, gate = choice_scores.float(), gate_scores.float()
    if isinstance(k0, torch.Tensor):
        # [..., rows, 1], so that it broadcasts over experts and slots; an int needs no tensor,
        # hence no copy
        k0 = k0.expand(topk_ids.shape[:-1]).unsqueeze(-1)
    if valid is None:
        valid = torch.ones(topk_ids.shape[:-1], dtype=torch.bool, device=choice.device)
    valid = valid.unsqueeze(-1)

    # invariant 10: a row that is not sound lends nothing and is left as it is
    sound = valid & ~choice.isnan().any(-1, keepdim=True) & ~(topk_ids < 0).any(-1, keepdim=True)
    # a row that is not sound may hold anything, and is not read below
    ids = topk_ids.long().clamp(0, experts - 1)

    rank = _rank(choice)
    own = torch.zeros_like(choice, dtype=torch.bool).scatter_(-1, ids, True)
    # a slot's place among the row's own: how many of the row's ids rank before it
    slot_rank = rank.gather(-1, ids)
    place = (slot_rank.unsqueeze(-1) > slot_rank.unsqueeze(-2)).sum(-1)
    baseline = torch.zeros_like(own).scatter_(-1, ids, place < k0)
    union = (baseline & sound).any(-2, keepdim=True)

    piggyback = union & (choice != -torch.inf)
    if max_rank is not None:
        piggyback = piggyback & (rank < max_rank)
    # preference, smaller first: the baseline, then the union, then the row's own rest, each by rank
    tier = torch.where(baseline, 0, torch.where(piggyback, 1, torch.where(own, 2, 3)))
    chosen = (tier * experts + rank).topk(slots, dim=-1, largest=False, sorted=True).indices

    chosen_gate = gate.gather(-1, chosen)
    divisor = chosen_gate if renormalize else gate.gather(-1, ids)
    scale = topk_weights.float().sum(-1, keepdim=True) / (
        divisor.sum(-1, keepdim=True) + RENORMALIZE_EPSILON
    )

    same_set = own.gather(-1, chosen).all(-1, keepdim=True)
    changed = sound & (k0 > 0) & (k0 < slots) & ~same_set
    new_ids = torch.where(changed, chosen.to(topk_ids.dtype), topk_ids)
    new_weights = torch.where(changed, (chosen_gate * scale).to(topk_weights.dtype), topk_weights)

    # invariant 9: padding takes the experts of the first sound row, at weight 0
    first_sound = sound.int().argmax(-2, keepdim=True).expand_as(new_ids[..., :1, :])
    padding = ~valid & (k0 > 0) & sound.any(-2, keepdim=True)
    new_ids = torch.where(padding, new_ids.gather(-2, first_sound), new_ids)
    return new_weights.masked_fill(padding, 0.0), new_ids


def _rank(choice: torch.Tensor) -> torch.Tensor:
    """`[..., N]`: each expert's place in its row, 0 the best, on a tie the lower id first."""
    order = choice.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(choice.shape[-1], device=choice.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _check(choice_scores, gate_scores, topk_ids, topk_weights, k0, valid, max_rank) -> None:
    """Refuse what does not fit together, by shape and dtype: values stay on the device."""
    if choice_scores.dim() not in (2, 3) or gate_scores.shape != choice_scores.shape:
        raise ValueError(
            "choice_scores and gate_scores: expected one shape [rows, N] or [G, rows, N], "
            f"got {list(choice_scores.shape)} and {list(gate_scores.shape)}"
        )
    batch, experts = choice_scores.shape[:-1], choice_scores.shape[-1]
    if topk_ids.shape[:-1] != batch or topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"topk_ids and topk_weights: expected one shape {[*batch, 'K']}, "
            f"got {list(topk_ids.shape)} and {list(topk_weights.shape)}"
        )
    if topk_ids.shape[-1] > experts:
        raise ValueError(f"topk_ids: {topk_ids.shape[-1]} slots a row, but only {experts} experts")
    if topk_ids.is_floating_point() or topk_ids.dtype == torch.bool:
        raise TypeError(f"topk_ids: expected an integer dtype, got {topk_ids.dtype}")
    if valid is not None and (valid.shape != batch or valid.dtype != torch.bool):
        raise ValueError(
            f"valid: expected bool {list(batch)}, got {valid.dtype} {list(valid.shape)}"
        )
    if max_rank is not None and max_rank < 1:
        raise ValueError(f"max_rank: expected at least 1, got {max_rank}")
    if isinstance(k0, torch.Tensor):
        allowed = [torch.Size(), batch, torch.Size([*batch[:-1], 1])]
        if k0.is_floating_point() or k0.dtype == torch.bool or k0.shape not in allowed:
            raise ValueError(
                f"k0: expected an int or an integer tensor, 0-d or {list(batch)}, "
                f"got {k0.dtype} {list(k0.shape)}"
            )
    elif isinstance(k0, bool) or not isinstance(k0, int) or k0 < 0:
        raise ValueError(f"k0: expected a whole number >= 0, got {k0!r}")
