"""The stock SGLang server without a GPU: for trying things out and for tests, not for speed.

Contract: does nothing unless `SGLANG_PLATFORM=cpu_torch` asks for it by name. SGLang calls
`activate()` of every installed platform when that variable is unset, and must then find none here,
so that a machine with a GPU keeps its own platform. Imports the standard library only.

    SGLANG_PLATFORM=cpu_torch python -m sglang.launch_server --model-path MODEL --device cpu \
        --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph
"""

import os

# the name of the entry point in pyproject.toml
NAME = "cpu_torch"


def activate() -> str | None:
    """Return the path of the platform class if it was asked for by name, else None."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    return f"{__name__}.platform:CpuTorchPlatform"
