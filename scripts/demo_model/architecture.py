"""The demo model's architecture: GLM-4-MoE with GLM-5's gate, below 6 M parameters."""

from typing import Any

import torch

from demo_model import experts


def make_config(tokenizer: Any) -> Any:
    """The transformers config; a head of 64 is what attention kernels of GPUs take."""
    from transformers import Glm4MoeConfig

    return Glm4MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=320,
        moe_intermediate_size=32,
        num_hidden_layers=5,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        use_qk_norm=True,
        n_routed_experts=64,
        num_experts_per_tok=8,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        num_nextn_predict_layers=0,
        initializer_range=0.04,
        max_position_embeddings=4096,
        # SGLang's Glm4MoeForCausalLM does not tie them
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_model(config: Any, seed: int) -> Any:
    """A model with fresh weights, in float32."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.set_experts_implementation(experts.NAME)
    for gate in gates(model):
        # as when it serves: logits in float32, whatever the layers before it compute in
        gate.forward = torch.autocast("cpu", enabled=False)(gate.forward)
    return model


def gates(model: Any) -> list[Any]:
    """The routers of the Mixture-of-Experts layers, first layer first."""
    return [m for m in model.modules() if hasattr(m, "e_score_correction_bias")]
