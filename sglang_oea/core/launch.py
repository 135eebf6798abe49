"""The kernel as an operator of torch: what it takes, its compile-time arguments, its registration.

A custom operator with a fake implementation, so that `torch.compile(fullgraph=True)` of a caller
neither breaks nor looks inside.
"""

import torch
import triton

from .kernel import reroute_kernel
from .scores import SCORING_FUNCTIONS, Router

MAX_EXPERTS, MAX_WIDTH = 1024, 32


def why_not(router: Router, experts: int) -> str | None:
    """Why a router takes the reference instead of this kernel, or None."""
    if experts > MAX_EXPERTS or router.slots + router.shared_slots > MAX_WIDTH:
        return f"more than {MAX_EXPERTS} experts or {MAX_WIDTH} slots"
    if router.scoring == "softmax" and router.biased:
        return "softmax with a correction bias"
    group_size, rest = divmod(experts, router.num_expert_group)
    if router.num_expert_group > 1 and (rest or experts & (experts - 1) or group_size < 2):
        return "groups of a number of experts that is no power of two"
    return None


def new_scratch(layers: int, experts: int, device: torch.device | str) -> torch.Tensor:
    """`[layers, experts + 1]` int32 zeros: marks of active experts, and how many rows are done.

    A launch leaves its line as it found it. One line must not serve two launches at a time.
    """
    return torch.zeros(layers, experts + 1, dtype=torch.int32, device=device)


def reroute(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor | None,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    valid: torch.Tensor,
    k0: torch.Tensor,
    counters: torch.Tensor,
    scratch: torch.Tensor,
    router: Router,
    max_rank: int | None = None,
    k0_by_row: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rerouted selection of one layer, and its counters.

    Args:
        router_logits: `[rows, N]`, any float dtype.
        correction_bias: `[N]` or None.
        topk_ids, topk_weights: `[rows, K + shared]`, the stock selection.
        valid: `[rows]` bool.
        k0: a line of the k0 table, `[more than rows]` int32 by number of valid rows; with
            `k0_by_row` `[rows]` integers.
        counters: the layer's line of `Stats.counters`, contiguous.
        scratch: the layer's line of `new_scratch`.
        router: what `why_not` has admitted.
        max_rank: see `routing.reroute`.

    Returns:
        `(topk_weights, topk_ids)`, fresh tensors in the shapes and dtypes that came in.
    """
    return torch.ops.sglang_oea.reroute(
        router_logits,
        correction_bias,
        topk_ids,
        topk_weights,
        valid,
        k0,
        counters,
        scratch,
        router.slots,
        SCORING_FUNCTIONS.index(router.scoring),
        router.renormalize,
        router.num_expert_group,
        router.topk_group,
        max_rank,
        k0_by_row,
    )


def _launch(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor | None,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    valid: torch.Tensor,
    k0: torch.Tensor,
    counters: torch.Tensor,
    scratch: torch.Tensor,
    slots: int,
    scoring: int,
    renormalize: bool,
    groups: int,
    topk_group: int,
    max_rank: int | None,
    k0_by_row: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = topk_ids.shape
    experts = router_logits.shape[1]
    # rows may lie apart, but the elements of one may not
    router_logits, topk_ids, topk_weights = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        for tensor in (router_logits, topk_ids, topk_weights)
    )
    valid, k0 = valid.contiguous(), k0.contiguous()
    ids = torch.empty(topk_ids.shape, dtype=topk_ids.dtype, device=topk_ids.device)
    weights = torch.empty(topk_ids.shape, dtype=topk_weights.dtype, device=topk_ids.device)
    if rows == 0:
        return weights, ids
    reroute_kernel[(rows,)](
        router_logits,
        router_logits.stride(0),
        correction_bias,
        topk_ids,
        topk_ids.stride(0),
        topk_weights,
        topk_weights.stride(0),
        valid,
        k0,
        ids,
        weights,
        counters,
        scratch,
        rows,
        **constants(
            experts,
            slots,
            width,
            scoring,
            correction_bias is not None,
            renormalize,
            groups,
            topk_group,
            max_rank,
            k0_by_row,
        ),
        num_warps=4,
    )
    return weights, ids


def constants(
    experts: int,
    slots: int,
    width: int,
    scoring: int,
    biased: bool,
    renormalize: bool,
    groups: int,
    topk_group: int,
    max_rank: int | None,
    k0_by_row: bool,
) -> dict[str, int | bool]:
    """The compile-time arguments of `reroute_kernel` for one kind of router."""
    return {
        "N": experts,
        "K": slots,
        "WIDTH": width,
        "SCORING": scoring,
        "BIASED": biased,
        "RENORMALIZE": renormalize,
        "GROUPS": groups,
        "TOPK_GROUP": topk_group,
        "MAX_RANK": min(max_rank or experts, experts),
        "K0_BY_ROW": k0_by_row,
        "BLOCK_N": triton.next_power_of_2(experts),
        "BLOCK_K": triton.next_power_of_2(width),
        # rows whose logits one program looks at together; 16 rows of 512 experts would spill
        "TILE": 16 if experts <= 256 else 8,
    }


def _register() -> None:
    """Define the operator once a process: a patched SGLang may carry this file a second time."""
    if hasattr(torch.ops.sglang_oea, "reroute"):
        return
    op = torch.library.custom_op(
        "sglang_oea::reroute", _launch, mutates_args=("counters", "scratch")
    )

    @op.register_fake
    def _(router_logits, correction_bias, topk_ids, topk_weights, *_):
        return topk_weights.new_empty(topk_weights.shape), topk_ids.new_empty(topk_ids.shape)


_register()
