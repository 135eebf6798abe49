"""What `topk.py` of 0.5.9 and 0.5.18 imports, where the whole SGLang of that release cannot be.

Three kinds. Real: the files in `REAL`, from the release's own tree. Given: what the torch code of
the router needs, on a machine without an accelerator. The rest is a name that may be imported and
nothing else; using it, or importing what is not listed, fails and says so.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch


class Unused:
    """A name that `topk.py` imports and that no case may use."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str):
        raise AssertionError(f"{self._name}.{attribute} is used, and no case lists it")

    def __call__(self, *args, **kwargs):
        raise AssertionError(f"{self._name}() is called, and no case lists it")


class Stub(types.ModuleType):
    """A module with the names that are listed; importing or touching another one fails."""

    def __init__(self, name: str):
        super().__init__(name)
        # a package, of which only what is in sys.modules can be imported
        self.__path__: list[str] = []

    def __getattr__(self, attribute: str):
        if attribute.startswith("__"):
            # the import system asks
            raise AttributeError(attribute)
        raise AssertionError(f"{self.__name__}.{attribute} is used, and no case lists it")


def _no() -> bool:
    return False


MACHINE = dict.fromkeys(("cpu_has_amx_support", "is_cuda", "is_hip", "is_npu", "is_xpu"), _no) | {
    # SGLang's CPU platform of this repository is no `cpu` either: the torch code runs, as on CUDA
    "is_cpu": _no,
    "get_bool_env_var": lambda name, default="false": False,
    "get_compiler_backend": lambda: "eager",
}
OTHER_BACKEND = types.SimpleNamespace(is_flashinfer_trtllm_routed=_no)
RECORDER = "sglang.srt.eplb.expert_distribution.get_global_expert_distribution_recorder"

GIVEN = {
    "0.5.9": {
        "sglang.srt.layers.utils.MultiPlatformOp": torch.nn.Module,
        "sglang.srt.utils.patch_torch.register_fake_if_exists": Unused("register_fake_if_exists"),
    },
    "0.5.18": {
        "sglang.kernels.fused_op.BaseFusedOp": torch.nn.Module,
        "sglang.srt.layers.moe.get_moe_runner_backend": lambda: OTHER_BACKEND,
        # true with expert parallelism alone
        "sglang.srt.layers.moe.utils.has_per_rank_fused_shared_slots": lambda slots: False,
        "sglang.srt.utils.is_musa": _no,
    },
}
# `topk_hosts.py` puts its own recorder and capturer in the place of two of these
UNUSED = {
    "0.5.9": (
        "sglang.srt.distributed.get_tp_group",
        "sglang.srt.distributed.device_communicators.pynccl_allocator.use_symmetric_memory",
        RECORDER,
        "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
        "sglang.srt.layers.dp_attention.is_allocation_symmetric",
        "sglang.srt.layers.moe.get_moe_runner_backend",
        "sglang.srt.layers.moe.routed_experts_capturer.get_global_experts_capturer",
        "sglang.srt.server_args.get_global_server_args",
    ),
    "0.5.18": (
        "sglang.kernels.ops.attention.dsv4.mask_topk_ids",
        "sglang.kernels.ops.moe.fill_padded_rows._can_fuse_padded_region",
        "sglang.kernels.ops.moe.fill_padded_rows._fill_padded_rows",
        "sglang.srt.distributed.get_tp_group",
        "sglang.srt.distributed.device_communicators.pynccl_allocator.use_symmetric_memory",
        RECORDER,
        "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
        "sglang.srt.layers.dp_attention.is_allocation_symmetric",
        "sglang.srt.runtime_context.get_exec",
        "sglang.srt.runtime_context.get_lora",
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.state_capturer.routed_experts.get_global_experts_capturer",
    ),
}
REAL = {
    "0.5.9": ("sglang.srt.eplb.expert_location_dispatch", "sglang.srt.layers.moe.oea"),
    "0.5.18": (
        "sglang.srt.environ",
        "sglang.srt.eplb.expert_location_dispatch",
        "sglang.srt.layers.moe.oea",
    ),
}


def install(release: str, tree: Path) -> None:
    """Make `sglang` importable in this process, as far as `topk.py` goes."""
    given = {f"sglang.srt.utils.{name}": value for name, value in MACHINE.items()}
    given |= GIVEN[release] | {name: Unused(name) for name in UNUSED[release]}
    for path, value in given.items():
        module, _, name = path.rpartition(".")
        setattr(_stub(module), name, value)
    for name in REAL[release]:
        parent, _, child = name.rpartition(".")
        path = tree / name.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        setattr(_stub(parent), child, load(name, file))


def load(name: str, file: Path) -> types.ModuleType:
    """A file as the module of this name; a package where it is an `__init__.py`."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stub(name: str) -> Stub:
    """The stub of this name, made with all that it lies in."""
    if name not in sys.modules:
        parent, _, child = name.rpartition(".")
        stub = sys.modules[name] = Stub(name)
        if parent:
            setattr(_stub(parent), child, stub)
    return sys.modules[name]
