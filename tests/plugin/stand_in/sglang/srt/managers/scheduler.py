"""The scheduler: one a rank, each in a process of its own."""

from dataclasses import dataclass

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.notes import note

ROWS = 5


@dataclass
class GetInternalStateReqOutput:
    """The answer that becomes one of `internal_states` of `/get_server_info`."""

    internal_state: dict


class Scheduler:
    """Runs the forwards."""

    def __init__(self, server_args):
        self.server_args = server_args
        self.model_runner = ModelRunner(server_args)

    def get_internal_state(self, recv_req):
        """The arguments, and what runs."""
        ret = dict(vars(self.server_args))
        ret["max_running_requests"] = ROWS
        return GetInternalStateReqOutput(internal_state=ret)

    def run(self):
        """One prefill and two decode steps, the last of them padded: what the routers chose."""
        slots = torch.arange(1, ROWS + 1)
        padded = torch.where(slots > ROWS - 2, 0, slots)
        steps = ((ForwardMode.EXTEND, slots), (ForwardMode.DECODE, slots))
        return [self._step(*step) for step in (*steps, (ForwardMode.DECODE, padded))]

    def _step(self, mode, slots):
        seen = []
        model = self.model_runner.model
        watched = [
            layer.topk.register_forward_hook(lambda module, args, output: seen.append(output))
            for layer in model.layers
        ]
        self.model_runner.forward(ForwardBatch(mode, torch.arange(ROWS) % 3, slots, slots))
        for handle in watched:
            handle.remove()
        return [
            {name: getattr(output, name).tolist() for name in output._fields} for output in seen
        ]


def run_scheduler_process(server_args, name):
    """A scheduler's process."""
    if name != server_args.model_on:
        note(server_args.notes, name)
        return
    scheduler = Scheduler(server_args)
    steps = scheduler.run()
    state = scheduler.get_internal_state(None).internal_state
    note(server_args.notes, name, steps=steps, internal_state=state)
