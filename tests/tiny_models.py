"""Tiny random models of transformers, one for each kind of router that the lab evaluates."""

import torch

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 3,
    "tie_word_embeddings": False,
}
GROUPED = {
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
SOFTMAX = {"intermediate_size": 32, "moe_intermediate_size": 16, "num_experts": 16}

# name -> (prefix of the classes in transformers, settings)
FAMILIES = {
    "glm4_moe": ("Glm4Moe", GROUPED | {"head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", SOFTMAX | {"head_dim": 16, "norm_topk_prob": True}),
    "deepseek_v3": ("DeepseekV3", GROUPED | LATENT | {"n_group": 4, "topk_group": 2}),
    "deepseek_v2": (
        "DeepseekV2",
        GROUPED | LATENT | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        GROUPED | LATENT | {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 64},
    ),
    "mixtral": ("Mixtral", {"intermediate_size": 16, "num_local_experts": 8}),
    "olmoe": ("Olmoe", {"intermediate_size": 16, "num_experts": 16, "norm_topk_prob": False}),
    "gpt_oss": ("GptOss", {"intermediate_size": 16, "num_local_experts": 8, "head_dim": 16}),
    "minimax_m2": ("MiniMaxM2", {"intermediate_size": 16, "num_local_experts": 8, "head_dim": 16}),
    "qwen2_moe": ("Qwen2Moe", SOFTMAX | {"shared_expert_intermediate_size": 16}),
}


def build(family, **changes):
    """A model with random weights; sizes are such that routers are sure of what they choose."""
    import transformers

    prefix, settings = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**(COMMON | settings | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("e_score_correction_bias"):
                tensor.normal_(std=0.1)
            elif not name.endswith("norm.weight"):
                tensor.normal_(std=0.3)
    return model


def tokens(rows, length, seed=0):
    """Random text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (rows, length), generator=generator)
