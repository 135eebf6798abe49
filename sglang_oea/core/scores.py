"""From router logits to the two scores that rerouting needs, for each scoring function of SGLang.

`Router` is what OEA keeps of SGLang's `TopKConfig`, read by attribute so that this file names no
host. `why_not` lists the routers that are left alone. Formulas follow
`sglang/srt/layers/moe/topk.py` (0.5.23): `fused_topk_torch_native`, `grouped_topk_gpu`,
`biased_grouped_topk_impl`; arithmetic is float32 throughout, also where SGLang stays in bf16.
"""

from dataclasses import dataclass
from typing import Any

import torch

SCORING_FUNCTIONS = ("softmax", "sigmoid", "sqrtsoftplus")


@dataclass(frozen=True)
class Router:
    """How one layer's router scores and weighs its experts."""

    scoring: str
    slots: int
    shared_slots: int
    renormalize: bool
    num_expert_group: int
    topk_group: int
    biased: bool

    @classmethod
    def of(cls, topk_config: Any) -> "Router":
        """Read SGLang's `TopKConfig` (or the same attributes elsewhere)."""
        grouped = topk_config.use_grouped_topk
        biased = topk_config.correction_bias is not None
        # releases before 0.5.15 name the count on the config itself
        shared = getattr(topk_config, "num_shared_topk_slots", None)
        if shared is None:
            shared = getattr(topk_config, "num_fused_shared_experts", 0)
        return cls(
            # the grouped router with a bias is sigmoid whatever scoring_func says (GLM-4.5 leaves
            # the default)
            scoring="sigmoid" if grouped and biased else topk_config.scoring_func,
            slots=topk_config.top_k - shared,
            shared_slots=shared,
            renormalize=topk_config.renormalize,
            num_expert_group=(topk_config.num_expert_group or 1) if grouped else 1,
            topk_group=(topk_config.topk_group or 1) if grouped else 1,
            biased=biased,
        )

    def scores(
        self, router_logits: torch.Tensor, correction_bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`(choice_scores, gate_scores)` of logits `[..., rows, N]`, see `from_logits`."""
        return from_logits(
            router_logits,
            self.scoring,
            correction_bias=correction_bias,
            num_expert_group=self.num_expert_group,
            topk_group=self.topk_group,
        )


def why_not(topk_config: Any, moe_runner_backend: str | None = None) -> str | None:
    """Why a layer with this `TopKConfig` is left alone, or None when it can be rerouted.

    Args:
        topk_config: SGLang's.
        moe_runner_backend: the server's, for releases whose config does not hold the layer's own.
    """
    router = Router.of(topk_config)
    if topk_config.custom_routing_function is not None:
        return "it has a custom routing function, whose scores are not known"
    if router.scoring not in SCORING_FUNCTIONS:
        return f"its scoring function {router.scoring!r} is not one of {SCORING_FUNCTIONS}"
    # on CUDA SGLang's softmax router takes no bias, elsewhere it does: two rankings for one config
    if router.scoring == "softmax" and router.biased and not topk_config.torch_native:
        return "it is softmax with a correction bias, which this backend ignores"
    backend = getattr(topk_config, "runner_backend", None)
    routed = getattr(backend, "is_flashinfer_trtllm_routed", None)
    raw_logits = moe_runner_backend == "flashinfer_trtllm_routed" if routed is None else routed()
    if raw_logits and router.scoring == "softmax" and not router.renormalize:
        return "its weights are raw logits (flashinfer_trtllm_routed without renormalisation)"
    return None


def from_logits(
    router_logits: torch.Tensor,
    scoring: str,
    *,
    correction_bias: torch.Tensor | None = None,
    num_expert_group: int = 1,
    topk_group: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score every expert for every row.

    Args:
        router_logits: `[..., rows, N]` float, the gate's output.
        scoring: one of `SCORING_FUNCTIONS`.
        correction_bias: `[N]`, added to what experts are ranked by, never to what weights are made
            of.
        num_expert_group: groups of equal size that the N experts form, in order.
        topk_group: groups a row may choose from: the best by the sum of their two best experts
            (with a bias) or by their best expert (without); on a tie the lower group.

    Returns:
        `(choice_scores, gate_scores)`, both `[..., rows, N]` float32; choice is `-inf` outside the
        chosen groups.

    Raises:
        ValueError: an unknown scoring function, or groups that do not divide the experts.
    """
    logits = router_logits.float()
    if scoring == "softmax":
        gate = logits.softmax(-1)
    elif scoring == "sigmoid":
        gate = logits.sigmoid()
    elif scoring == "sqrtsoftplus":
        gate = torch.nn.functional.softplus(logits).sqrt()
    else:
        raise ValueError(f"scoring: expected one of {SCORING_FUNCTIONS}, got {scoring!r}")
    choice = gate if correction_bias is None else gate + correction_bias.float()
    if num_expert_group > 1:
        best = 1 if correction_bias is None else 2
        choice = _limit_to_groups(choice, num_expert_group, topk_group, best)
    return choice, gate


def _limit_to_groups(choice: torch.Tensor, groups: int, topk_group: int, best: int) -> torch.Tensor:
    experts = choice.shape[-1]
    if experts % groups:
        raise ValueError(f"num_expert_group: {groups} groups do not divide {experts} experts")
    # [..., rows, groups, N / groups]
    grouped = choice.unflatten(-1, (groups, experts // groups))
    group_scores = grouped.topk(min(best, experts // groups), dim=-1).values.sum(-1)
    order = group_scores.sort(dim=-1, descending=True, stable=True).indices[..., :topk_group]
    allowed = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(-1, order, True)
    return grouped.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)
