"""Starts the processes of a server."""

import multiprocessing
import sys

from sglang.srt.managers.detokenizer_manager import run_detokenizer_process


def launch_server(server_args):
    """Serve until every process has ended."""
    if server_args.exit_status:
        sys.exit(server_args.exit_status)
    multiprocessing.set_start_method("spawn", force=True)
    processes = [multiprocessing.Process(target=run_detokenizer_process, args=(server_args,))]
    processes += list(_schedulers(server_args))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


def _schedulers(server_args):
    if server_args.tp_size:
        from sglang.srt.managers.scheduler import run_scheduler_process

        for rank in range(server_args.tp_size):
            args = (server_args, f"scheduler-{rank}")
            yield multiprocessing.Process(target=run_scheduler_process, args=args)
    if server_args.dp_size:
        from sglang.srt.managers.data_parallel_controller import run_controller_process

        yield multiprocessing.Process(target=run_controller_process, args=(server_args,))
