"""In torch, the three CUDA kernels that a topk case reaches, as SGLang calls them."""

import torch


def topk_softmax(topk_weights, topk_ids, gating_output, renormalize) -> None:
    """Softmax and top-k, into the first two arguments."""
    weights, ids = gating_output.float().softmax(-1).topk(topk_ids.shape[-1], dim=-1)
    topk_ids.copy_(ids)
    topk_weights.copy_(weights / weights.sum(-1, keepdim=True) if renormalize else weights)


def topk_softmax_pack(topk_weights, topk_ids, packed_out, gating_output, renormalize, **_) -> None:
    """The same, and a packed copy of both."""
    topk_softmax(topk_weights, topk_ids, gating_output, renormalize)
    packed_out.copy_(_packed(topk_weights, topk_ids))


def moe_fused_gate(
    scores,
    bias,
    *,
    topk,
    scoring_func,
    num_fused_shared_experts,
    renormalize,
    routed_scaling_factor,
    apply_routed_scaling_factor_on_output,
    num_token_non_padded,
    packed_out,
    sqrtsoftplus_log1p,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Triton's router of 0.5.23 where it masks rows: -1 and weight 0 from the count on."""
    assert (scoring_func, num_fused_shared_experts, renormalize) == ("sqrtsoftplus", 0, True)
    assert apply_routed_scaling_factor_on_output and not sqrtsoftplus_log1p
    gate = torch.nn.functional.softplus(scores.float()).sqrt()
    ids = (gate + bias).topk(topk, dim=-1).indices.int()
    weights = gate.gather(-1, ids.long())
    weights = weights / weights.sum(-1, keepdim=True) * routed_scaling_factor
    padding = torch.arange(len(scores)) >= num_token_non_padded
    ids[padding], weights[padding] = -1, 0.0
    packed_out.copy_(_packed(weights, ids))
    return weights, ids


def _packed(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Ids in the upper 16 bits, bfloat16 weights in the lower."""
    return ids << 16 | (weights.bfloat16().view(torch.int16).int() & 0xFFFF)
