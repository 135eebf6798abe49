"""What is relied on in SGLang, as data: each symbol that is hooked or read, and its names.

The contract decides, not the version: a release that meets it is accepted, and one that was never
run is said to be untested. `items()` are those of the installed release: 0.5.9 and 0.5.10 have no
plugin system, and 0.5.9 no function between the top-k and what consumes it. `problems()` imports
the modules it checks.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from sglang_oea.core.config import Refusal

TESTED = ("0.5.23",)
SUPPORTED = (
    "0.5.23 (tested), 0.5.12 and later where the contract holds, "
    "0.5.9 and 0.5.10 with `python -m sglang_oea.launch_server`"
)

_TOPK = "sglang.srt.layers.moe.topk"
SELECT_EXPERTS = f"{_TOPK}.select_experts"
POST_PROCESS = f"{_TOPK}._post_process_topk_ids"
# what select_experts() of 0.5.9 calls instead, one of them in each of its branches
ROUTING_FUNCTIONS = tuple(
    f"{_TOPK}.{name}"
    for name in ("grouped_topk", "biased_grouped_topk", "fused_topk", "fused_topk_native")
)
LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
_CONTROLLER = "sglang.srt.managers.scheduler_components.internal_state"
UPDATE_HANDLERS = f"{_CONTROLLER}.SchedulerInternalStateController._update_handlers"
# where a patched SGLang carries the core
PATCH = Path("srt", "layers", "moe", "oea", "__init__.py")
LIVE_K0, LIVE_K0_CHECK = "live k0", "errors that explain a live k0"
TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__"


@dataclass(frozen=True)
class Item:
    """One symbol: its path, the parameters or fields it must have, and what OEA needs it for.

    `optional` names the feature that is unavailable without it; empty for what OEA cannot do
    without.
    """

    path: str
    names: tuple[str, ...]
    purpose: str
    optional: str = ""

    def problem(self) -> str | None:
        """What does not hold in the SGLang that is installed, or None."""
        try:
            found = pkgutil.resolve_name(self.path)
        # whatever the import of SGLang runs into
        except Exception as error:
            return f"{self.path} is not there ({error})"
        missing = [name for name in self.names if name not in _names_of(found)]
        return f"{self.path} has no {', '.join(missing)}" if missing else None


PLUGIN_SYSTEM = Item(
    "sglang.srt.plugins.hook_registry.HookRegistry.register", ("target", "hook"), "hooks"
)
_PLACE = "the place of rerouting: after the top-k, before all that consumes it"
PLACE = Item(
    POST_PROCESS,
    (
        "topk_ids",
        "topk_weights",
        "topk_config",
        "router_logits",
        "layer_id",
        "num_token_non_padded",
    ),
    _PLACE,
)
PLACE_OF_0_5_9 = tuple(Item(path, ("gating_output",), _PLACE) for path in ROUTING_FUNCTIONS)
CONTRACT = (
    Item(
        SELECT_EXPERTS,
        ("hidden_states", "router_logits", "topk_config", "layer_id", "num_token_non_padded"),
        "the region in which ids are rerouted",
    ),
    Item(
        "sglang.srt.layers.moe.topk.TopKConfig",
        (
            "top_k",
            "use_grouped_topk",
            "topk_group",
            "num_expert_group",
            "renormalize",
            "custom_routing_function",
            "correction_bias",
            "torch_native",
            "scoring_func",
            "output_format",
        ),
        "how a layer's router scores",
    ),
    Item("sglang.srt.layers.moe.topk.TopK", (), "finding the MoE layers"),
    Item("sglang.srt.layers.moe.topk.TopKOutputFormat", (), "layers that bypass the top-k"),
    Item(
        "sglang.srt.layers.moe.topk.StandardTopKOutput",
        ("topk_weights", "topk_ids", "router_logits"),
        "dropping packed ids",
    ),
    Item(
        "sglang.srt.layers.moe.topk.StandardTopKOutputPacked",
        ("packed_topk_ids",),
        "recognising packed ids",
        "packed ids, which a release without them does not need",
    ),
    Item("sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE", (), "finding the MoE layers"),
    Item(LOAD_MODEL, ("self",), "wrapping the loaded model's forward"),
    Item("sglang.srt.distributed.get_tp_group", (), "comparing settings across ranks"),
    Item(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        ("forward_mode", "out_cache_loc"),
        "decode or not, and which rows are real",
    ),
    Item("sglang.srt.model_executor.forward_batch_info.ForwardMode.is_decode", (), "the gate"),
    Item(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_target_verify", (), "the gate"
    ),
    Item(INTERNAL_STATE, ("self",), "the proof in /server_info"),
    Item(UPDATE_HANDLERS, ("self",), "a handler for oea_k0", LIVE_K0),
    Item(f"{_CONTROLLER}._UpdateHandler", ("validate", "apply"), "a handler for oea_k0", LIVE_K0),
    Item(f"{_CONTROLLER}.UpdateRejected", (), "a handler for oea_k0", LIVE_K0),
    Item(TOKENIZER_MANAGER, ("self",), "telling numbers from true and strings", LIVE_K0_CHECK),
)


def installed_version() -> str | None:
    """SGLang's version from its metadata, without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def has_plugin_system() -> bool:
    """Whether SGLang loads plugins by itself (0.5.12 and later)."""
    return importlib.util.find_spec("sglang.srt.plugins") is not None


def carries_patch() -> bool:
    """Whether this SGLang was patched, and reroutes by itself."""
    found = importlib.util.find_spec("sglang")
    # by its file: a folder of bytecode that a reversed patch left behind could still be imported
    folders = found.submodule_search_locations if found else ()
    return any(Path(folder, PATCH).is_file() for folder in folders)


def has_post_process() -> bool:
    """Whether `select_experts` hands its ids to a function of their own (0.5.10 and later)."""
    try:
        return hasattr(importlib.import_module(_TOPK), POST_PROCESS.rpartition(".")[2])
    except ImportError:
        # then nothing of it is there, and the item says so
        return True


def hooked() -> tuple[str, ...]:
    """What is hooked without a second witness that the hook arrived."""
    place = (POST_PROCESS,) if has_post_process() else ROUTING_FUNCTIONS
    return (SELECT_EXPERTS, *place, INTERNAL_STATE)


def items() -> tuple[Item, ...]:
    """What the installed release is measured by."""
    place = (PLACE,) if has_post_process() else PLACE_OF_0_5_9
    return (*((PLUGIN_SYSTEM,) if has_plugin_system() else ()), *place, *CONTRACT)


def problems(wanted: tuple[Item, ...] | None = None) -> list[str]:
    """What the installed SGLang lacks of the required items."""
    wanted = items() if wanted is None else wanted
    return [problem for item in wanted if not item.optional and (problem := item.problem())]


def available(feature: str) -> bool:
    """Whether every item that an optional feature needs is there."""
    return all(item.problem() is None for item in CONTRACT if item.optional == feature)


def refusal_of(found: list[str]) -> Refusal:
    """A host that does not meet the contract."""
    return Refusal(
        "this SGLang does not have what OEA is attached to",
        where=f"sglang {installed_version()}",
        got="; ".join(found),
        expected=SUPPORTED,
        fix="install sglang==0.5.23, or unset SGLANG_OEA_K0",
    )


def _names_of(found: object) -> set[str]:
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    fields = getattr(found, "_fields", None)
    if fields is not None:
        return set(fields)
    return set(inspect.signature(found).parameters)


def parameters(path: str) -> tuple[str, ...]:
    """The parameter names of a function, in order."""
    return tuple(inspect.signature(pkgutil.resolve_name(path)).parameters)
