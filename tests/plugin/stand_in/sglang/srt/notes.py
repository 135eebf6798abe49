"""What a process saw of itself, for the test to read. The one module that SGLang does not have."""

import json
import pkgutil
import sys
from pathlib import Path

TOPK = "sglang.srt.layers.moe.topk"
FUNCTIONS = (
    f"{TOPK}:select_experts",
    f"{TOPK}:grouped_topk",
    f"{TOPK}:biased_grouped_topk",
    f"{TOPK}:fused_topk",
    f"{TOPK}:fused_topk_native",
    # the function of `grouped_topk`, by the name that it was defined with
    f"{TOPK}:grouped_topk_gpu",
    # a release later than 0.5.9
    f"{TOPK}:_post_process_topk_ids",
    # the function of topk.py, by the name under which another module has imported it
    "sglang.srt.layers.moe.fused_moe_triton.layer:select_experts",
    "sglang.srt.model_executor.model_runner:ModelRunner.load_model",
    "sglang.srt.managers.scheduler:Scheduler.get_internal_state",
)


def note(folder, name, **more):
    """Write down what process `name` holds; nothing is imported for it."""
    seen = {
        "torch": "torch" in sys.modules,
        "wrappers": {path: _wrappers(path) for path in FUNCTIONS if _is_there(path)},
    }
    Path(folder, f"{name}.json").write_text(json.dumps(seen | more))


def _is_there(path):
    module, _, name = path.partition(":")
    return hasattr(sys.modules.get(module), name.partition(".")[0])


def _wrappers(path):
    """How many wrappers lie around a function."""
    count, function = 0, pkgutil.resolve_name(path)
    while hasattr(function, "__wrapped__"):
        count, function = count + 1, function.__wrapped__
    return count
