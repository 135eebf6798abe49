"""Routers: `select_experts` calls one routing function, which masks and maps the ids itself."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import NamedTuple

import torch


class TopKOutputFormat(IntEnum):
    """How a layer's experts want to be told of the routing."""

    STANDARD = auto()
    TRITON_KERNEL = auto()
    BYPASSED = auto()


@dataclass
class TopKConfig:
    """How one layer routes."""

    top_k: int
    use_grouped_topk: bool = False
    topk_group: int | None = None
    num_expert_group: int | None = None
    renormalize: bool = True
    num_fused_shared_experts: int = 0
    custom_routing_function: Callable | None = None
    correction_bias: torch.Tensor | None = None
    torch_native: bool = False
    routed_scaling_factor: float | None = None
    apply_routed_scaling_factor_on_output: bool = False
    fused_shared_experts_scaling_factor: float | None = None
    output_format: TopKOutputFormat | None = None
    scoring_func: str = "softmax"


class StandardTopKOutput(NamedTuple):
    """What a layer's experts are given: `[rows, K]` twice, and `[rows, N]`."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor


class TopK(torch.nn.Module):
    """The router of one layer, as it runs where no kernel does."""

    def __init__(self, top_k, *, layer_id=None, **settings):
        super().__init__()
        self.layer_id = layer_id
        self.topk_config = TopKConfig(top_k, **settings)

    def forward(self, hidden_states, router_logits, *, num_token_non_padded=None):
        """Choose experts for every row."""
        self.topk_config.torch_native = True
        return select_experts(
            hidden_states=hidden_states,
            layer_id=self.layer_id,
            router_logits=router_logits,
            topk_config=self.topk_config,
            num_token_non_padded=num_token_non_padded,
        )


def _choose(gate, choice, topk, renormalize):
    ids = choice.topk(topk, dim=-1).indices
    weights = gate.gather(-1, ids)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.int()


def _mapped_and_masked(ids, num_token_non_padded, expert_location_dispatch_info):
    if expert_location_dispatch_info is not None:
        ids = expert_location_dispatch_info[ids.long()].int()
    if num_token_non_padded is not None:
        ids[torch.arange(ids.shape[0]) >= num_token_non_padded] = -1
    return ids


def _scores(gating_output, scoring_func):
    gating_output = gating_output.float()
    return gating_output.sigmoid() if scoring_func == "sigmoid" else gating_output.softmax(-1)


def fused_topk_torch_native(
    hidden_states, gating_output, topk, renormalize, correction_bias=None, scoring_func="softmax"
):
    """Without a kernel."""
    gate = _scores(gating_output, scoring_func)
    choice = gate if correction_bias is None else gate + correction_bias
    return _choose(gate, choice, topk, renormalize)


def fused_topk(
    hidden_states,
    gating_output,
    topk,
    renormalize,
    correction_bias=None,
    num_token_non_padded=None,
    expert_location_dispatch_info=None,
    scoring_func="softmax",
):
    """Where a kernel would run."""
    gate = _scores(gating_output, scoring_func)
    choice = gate if correction_bias is None else gate + correction_bias
    weights, ids = _choose(gate, choice, topk, renormalize)
    return weights, _mapped_and_masked(ids, num_token_non_padded, expert_location_dispatch_info)


def _in_best_groups(choice, groups, topk_group, best):
    grouped = choice.unflatten(-1, (groups, -1))
    kept = grouped.topk(best, dim=-1).values.sum(-1).topk(topk_group, dim=-1).indices
    allowed = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter_(-1, kept, True)
    return grouped.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)


def grouped_topk_gpu(
    hidden_states,
    gating_output,
    topk,
    renormalize,
    num_expert_group,
    topk_group,
    num_token_non_padded=None,
    expert_location_dispatch_info=None,
):
    """DeepSeek-V2: groups by their best expert, softmax."""
    gate = gating_output.float().softmax(-1)
    choice = _in_best_groups(gate, num_expert_group, topk_group, best=1)
    weights, ids = _choose(gate, choice, topk, renormalize)
    return weights, _mapped_and_masked(ids, num_token_non_padded, expert_location_dispatch_info)


def biased_grouped_topk_gpu(
    hidden_states,
    gating_output,
    correction_bias,
    topk,
    renormalize,
    num_expert_group,
    topk_group,
    num_token_non_padded=None,
    expert_location_dispatch_info=None,
):
    """DeepSeek-V3 and GLM-5: groups by their two best experts, sigmoid and bias."""
    gate = gating_output.float().sigmoid()
    choice = _in_best_groups(gate + correction_bias, num_expert_group, topk_group, best=2)
    weights, ids = _choose(gate, choice, topk, renormalize)
    return weights, _mapped_and_masked(ids, num_token_non_padded, expert_location_dispatch_info)


grouped_topk = grouped_topk_gpu
biased_grouped_topk = biased_grouped_topk_gpu
fused_topk_native = fused_topk_torch_native
# what the recorder of the expert distribution was told
recorded = []


def select_experts(
    hidden_states,
    router_logits,
    topk_config,
    *,
    layer_id=None,
    num_token_non_padded=None,
    expert_location_dispatch_info=None,
):
    """Choose `top_k` experts for every row by one of the routing functions."""
    routed = dict(
        hidden_states=hidden_states,
        gating_output=router_logits,
        topk=topk_config.top_k,
        renormalize=topk_config.renormalize,
    )
    groups = dict(num_expert_group=topk_config.num_expert_group, topk_group=topk_config.topk_group)
    places = dict(
        num_token_non_padded=num_token_non_padded,
        expert_location_dispatch_info=expert_location_dispatch_info,
    )
    scored = dict(
        correction_bias=topk_config.correction_bias, scoring_func=topk_config.scoring_func
    )
    if topk_config.use_grouped_topk and topk_config.correction_bias is None:
        topk_weights, topk_ids = grouped_topk(**routed, **groups, **places)
    elif topk_config.use_grouped_topk:
        topk_weights, topk_ids = biased_grouped_topk(
            **routed, **groups, **places, correction_bias=topk_config.correction_bias
        )
    elif topk_config.custom_routing_function is not None:
        topk_weights, topk_ids = topk_config.custom_routing_function(**routed)
    elif topk_config.torch_native:
        topk_weights, topk_ids = fused_topk_native(**routed, **scored)
    else:
        topk_weights, topk_ids = fused_topk(**routed, **scored, **places)
    recorded.append(topk_ids)
    return StandardTopKOutput(topk_weights, topk_ids, router_logits)
