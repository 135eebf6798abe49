"""The hooks: `select_experts`, the place of rerouting within it, the model load, the scheduler.

Signature: those of SGLang, forwarded as they come and bound by name, never restated.
Covered: every call of `select_experts`, eager, captured or compiled, on any device. Ids are still
    logical there, so that the expert mapping, padding masks, shared-expert columns, the recorder
    and the capture of routed experts all see the rerouted ones.
Not covered: routers that never call it (`HashTopK`, `mega_gate`, models with a fused router,
    BYPASSED and TRITON_KERNEL outputs). `core/evidence.py` names them. In 0.5.9 the routing
    functions map ids themselves, and a layer whose ids were mapped is left alone.
"""

import logging
import pkgutil
from collections.abc import Callable
from typing import Any

from sglang_oea.core import config
from sglang_oea.core.session import Session

from . import contract, control, rebinding

logger = logging.getLogger("sglang_oea")


def attach(settings: config.Config) -> "Plugin | None":
    """Check the contract and hook what it names.

    With a plugin system SGLang applies the hooks once all plugins have run; without one they hold
    at once.

    Returns:
        What the hooks share, or None where a patched SGLang does the work.

    Raises:
        Refusal: the contract does not hold.
    """
    if contract.carries_patch():
        logger.warning("sglang_oea: this SGLang carries the OEA patch, which does the work")
        return None
    found = contract.problems()
    if found:
        raise contract.refusal_of(found)
    if contract.installed_version() not in contract.TESTED:
        logger.warning(
            "sglang_oea: sglang %s was never tested; tested: %s",
            contract.installed_version(),
            ", ".join(contract.TESTED),
        )
    around = _around()
    plugin = Plugin(settings)
    around(contract.SELECT_EXPERTS, plugin.select_experts)
    if contract.has_post_process():
        around(contract.POST_PROCESS, plugin.post_process)
    else:
        for path in contract.ROUTING_FUNCTIONS:
            around(path, plugin.routing_function)
    around(contract.LOAD_MODEL, plugin.load_model)
    around(contract.INTERNAL_STATE, plugin.control.internal_state)
    if contract.available(contract.LIVE_K0):
        around(contract.UPDATE_HANDLERS, plugin.control.handlers)
        if contract.available(contract.LIVE_K0_CHECK):
            around(contract.TOKENIZER_MANAGER, control.watch_requests)
    else:
        logger.warning("sglang_oea: live k0 unavailable in this release")
    return plugin


def _around() -> Callable[[str, Callable], None]:
    """What hooks a function in the installed release."""
    if not contract.has_plugin_system():
        return rebinding.around
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    return lambda path, hook: HookRegistry.register(path, hook, HookType.AROUND)


class Plugin:
    """What the hooks of one process share."""

    def __init__(self, settings: config.Config):
        self.session = Session(settings)
        self.control = control.Control(self.session)
        self.model_seen = False
        # the arguments of the select_experts() that runs now, if its ids are to be rerouted
        self.selecting: dict[str, Any] | None = None
        # the unhooked functions, to tell later whether the hooks arrived
        self.stock = {path: pkgutil.resolve_name(path) for path in contract.hooked()}
        self.select_experts_names = contract.parameters(contract.SELECT_EXPERTS)
        self.post_process_names = (
            contract.parameters(contract.POST_PROCESS) if contract.has_post_process() else ()
        )

    def select_experts(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `select_experts`: open the region; drop a packed copy that is no longer true."""
        if not self.model_seen:
            self._refuse_unseen_model()
        if self.session.recorder is not None:
            self.session.recorder.refuse_capture()
        if not self.session.is_open:
            return original(*args, **kwargs)
        self.selecting = _by_name(self.select_experts_names, args, kwargs)
        try:
            output = original(*args, **kwargs)
        finally:
            self.selecting = None
        return _without_packed_ids(output)

    def post_process(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `_post_process_topk_ids`: reroute first, if it is `select_experts` that calls."""
        if self.selecting is None:
            return original(*args, **kwargs)
        named = _by_name(self.post_process_names, args, kwargs)
        bias_of_rows = self.selecting.get("dynamic_expert_bias")
        named["topk_weights"], named["topk_ids"] = self.session.reroute_topk(
            named["topk_weights"],
            named["topk_ids"],
            named["router_logits"],
            named["topk_config"],
            named["layer_id"],
            named.get("num_token_non_padded"),
            left_alone=None if bias_of_rows is None else "its bias differs by token",
        )
        if "padded_rows_masked" in named:
            # rows that the router had masked hold experts again
            named["padded_rows_masked"] = False
        return original(**named)

    def routing_function(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND a routing function of 0.5.9: reroute last, if `select_experts` calls."""
        selecting, self.selecting = self.selecting, None
        topk_weights, topk_ids = original(*args, **kwargs)
        if selecting is None:
            return topk_weights, topk_ids
        mapped = selecting.get("expert_location_dispatch_info") is not None
        return self.session.reroute_topk(
            topk_weights,
            topk_ids,
            selecting["router_logits"],
            selecting["topk_config"],
            selecting.get("layer_id"),
            selecting.get("num_token_non_padded"),
            left_alone="its routing function maps logical to physical experts" if mapped else None,
        )

    def load_model(self, original: Callable, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """AROUND `ModelRunner.load_model`: refuse before the weights load, prepare after."""
        self.model_seen = True
        if runner.is_draft_worker or self._is_attached():
            self.session.admit(runner)
            self._record(runner)
        result = original(runner, *args, **kwargs)
        if self.session.admitted:
            from sglang.srt.distributed import get_tp_group
            from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
            from sglang.srt.layers.moe.topk import TopK

            self.session.prepare(runner, TopK, FusedMoE, get_tp_group().cpu_group)
        return result

    def _is_attached(self) -> bool:
        missing = [
            path for path, stock in self.stock.items() if pkgutil.resolve_name(path) is stock
        ]
        if missing:
            self.session.refuse(_not_attached(missing))
        return not missing

    def _record(self, runner: Any) -> None:
        folder = self.session.settings.trace
        if folder is None or not self.session.admitted or runner.is_draft_worker:
            return
        from sglang.srt.distributed import get_tp_group

        # all ranks route alike, so one of them tells all
        if get_tp_group().rank_in_group == 0:
            from . import trace

            trace.attach(self.session)

    def _refuse_unseen_model(self) -> None:
        # said once, also where it does not stop the server
        self.model_seen = True
        self.session.refuse(_not_attached([contract.LOAD_MODEL]))


def _by_name(names: tuple[str, ...], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | kwargs


def _without_packed_ids(output: Any) -> Any:
    """A top-k output whose packed copy still holds the stock ids, without that copy."""
    if not hasattr(output, "packed_topk_ids"):
        return output
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    return StandardTopKOutput(output.topk_weights, output.topk_ids, output.router_logits)


def _not_attached(paths: list[str]) -> config.Refusal:
    return config.Refusal(
        "OEA is not attached, although its contract holds",
        where="the hooks of this process",
        got=f"no hook on {', '.join(paths)}",
        expected="every hook that the plugin registered",
        fix="look in the log for hooks that failed; another plugin may be in the way",
    )
