"""A process that starts processes of its own: one scheduler for each data-parallel rank."""

import multiprocessing
import sys

from sglang.srt.managers.scheduler import run_scheduler_process
from sglang.srt.notes import note


def run_controller_process(server_args):
    """The controller's process."""
    note(server_args.notes, "controller")
    children = [
        multiprocessing.Process(
            target=run_scheduler_process, args=(server_args, f"scheduler-dp{rank}")
        )
        for rank in range(server_args.dp_size)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode) for child in children))
