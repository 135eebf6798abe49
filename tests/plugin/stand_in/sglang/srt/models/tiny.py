"""A model of two MoE layers: eight experts, top 3, renormalised softmax."""

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.topk import TopK

EXPERTS, SLOTS, HIDDEN, VOCABULARY = 8, 3, 16, 16


class TinyMoe(torch.nn.Module):
    """Gate, router, experts."""

    def __init__(self, layer_id):
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.topk = TopK(SLOTS, layer_id=layer_id)
        self.experts = FusedMoE(EXPERTS, HIDDEN, layer_id)

    def forward(self, hidden_states):
        """`[rows, hidden]`."""
        topk_output = self.topk(hidden_states, self.gate(hidden_states))
        return self.experts(hidden_states, topk_output)


class TinyForCausalLM(torch.nn.Module):
    """Embedding, position, layers."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.embed_positions = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = torch.nn.ModuleList(TinyMoe(layer_id) for layer_id in range(2))

    def forward(self, input_ids, positions, forward_batch):
        """`[rows, hidden]`."""
        hidden_states = self.embed_tokens(input_ids) + self.embed_positions(positions)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states
