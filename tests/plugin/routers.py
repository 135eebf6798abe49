"""SGLang's `TopKConfig` for each router that is rerouted, and the oracle's answer for it."""

import oracle
import torch

ROWS, EXPERTS, HIDDEN, SLOTS = 24, 64, 16, 8


def bias() -> torch.Tensor:
    """A seeded correction bias, `[N]`, large enough to matter."""
    return torch.randn(EXPERTS, generator=torch.Generator().manual_seed(5)) * 0.1


# name -> what differs from TopKConfig's defaults
ROUTERS = {
    "qwen3: softmax": dict(scoring_func="softmax"),
    "qwen2: softmax, not renormalised": dict(scoring_func="softmax", renormalize=False),
    "softmax with bias": dict(scoring_func="softmax", correction_bias=bias()),
    "sigmoid": dict(scoring_func="sigmoid"),
    "sigmoid with bias": dict(scoring_func="sigmoid", correction_bias=bias()),
    "deepseek-v4: sqrtsoftplus": dict(scoring_func="sqrtsoftplus"),
    "deepseek-v4: sqrtsoftplus with bias": dict(
        scoring_func="sqrtsoftplus",
        correction_bias=bias(),
        routed_scaling_factor=1.5,
        apply_routed_scaling_factor_on_output=True,
    ),
    # scoring_func is left at softmax, as GLM-4.5 to GLM-5 do
    "glm-5: grouped with bias": dict(
        use_grouped_topk=True, num_expert_group=1, topk_group=1, correction_bias=bias()
    ),
    "glm-5: scaling folded": dict(
        use_grouped_topk=True,
        num_expert_group=1,
        topk_group=1,
        correction_bias=bias(),
        routed_scaling_factor=2.5,
        apply_routed_scaling_factor_on_output=True,
    ),
    "deepseek-v3: eight groups": dict(
        use_grouped_topk=True, num_expert_group=8, topk_group=4, correction_bias=bias()
    ),
    "deepseek-v2: groups without bias": dict(
        use_grouped_topk=True, num_expert_group=8, topk_group=3, renormalize=False
    ),
}


def topk_config(name: str, shared: int = 0, **changes):
    """A real `TopKConfig` that runs on the CPU."""
    from sglang.srt.configs.shared_experts import SharedExpertsConfig
    from sglang.srt.layers.moe.topk import TopKConfig

    settings = dict(torch_native=True) | ROUTERS[name] | changes
    fused = SharedExpertsConfig(num_fused_shared_experts=shared)
    return TopKConfig(top_k=SLOTS + shared, shared_experts=fused, **settings)


def logits(seed: int, rows: int = ROWS) -> torch.Tensor:
    """`[rows, N]` seeded router logits, rows alike enough to share experts."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(1, EXPERTS, generator=generator)
    return common + torch.randn(rows, EXPERTS, generator=generator)


def expected(stock, router_logits: torch.Tensor, config, k0: int, valid: torch.Tensor):
    """The oracle's `(weights, ids)` for what stock returned."""
    grouped = config.use_grouped_topk
    biased = config.correction_bias is not None
    scoring = "sigmoid" if grouped and biased else config.scoring_func
    bias_of = config.correction_bias.tolist() if biased else None
    groups = (config.num_expert_group, config.topk_group) if grouped else (1, 1)
    gate = [oracle.gate_scores(row, scoring) for row in router_logits.tolist()]
    # rounded as float32 arithmetic does, so that groups and ties are the same
    gate = torch.tensor(gate, dtype=torch.float32).tolist()
    choice = [oracle.choice_scores(row, bias_of, *groups) for row in gate]
    return oracle.reroute(
        choice,
        gate,
        stock.topk_ids[:, :SLOTS].tolist(),
        stock.topk_weights[:, :SLOTS].tolist(),
        [k0] * len(gate),
        renormalize=config.renormalize,
        valid=valid.tolist(),
        max_rank=None,
    )
