"""A model loaded by SGLang's own `ModelRunner` in this process, without a server.

For looking into layers: the tests read a real `TopKConfig` from it, `bench_layer.py` times one MoE
layer. One a process, since SGLang keeps its parallel state in globals. CPU only.
"""

from pathlib import Path
from typing import Any

from serving import CPU_FLAGS, free_port


def load_runner(model: Path) -> Any:
    """Load a checkpoint into SGLang's `ModelRunner`; hooks applied before stay in force."""
    from sglang.benchmark import one_batch
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, prepare_server_args

    flags = ["--mem-fraction-static=0.3", "--max-total-tokens=4096"]
    server_args = prepare_server_args(
        [f"--model-path={model}", f"--port={free_port()}", *CPU_FLAGS, *flags]
    )
    rank = spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(server_args, PortArgs.init_new(server_args), 0, 0)
    return runner.torch_runner
