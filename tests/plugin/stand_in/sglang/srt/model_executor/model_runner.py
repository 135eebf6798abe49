"""Loads the model and runs its forwards."""

import torch
from sglang.srt.distributed import init_distributed_environment
from sglang.srt.models.tiny import TinyForCausalLM


class ModelRunner:
    """The target model."""

    def __init__(self, server_args):
        self.server_args, self.is_draft_worker = server_args, False
        init_distributed_environment(f"{server_args.notes}/store")
        self.load_model()

    def load_model(self):
        """Seeded, since there is no checkpoint."""
        torch.manual_seed(0)
        self.model = TinyForCausalLM()

    def forward(self, forward_batch):
        """One step."""
        with torch.no_grad():
            return self.model.forward(
                forward_batch.input_ids, forward_batch.positions, forward_batch
            )
