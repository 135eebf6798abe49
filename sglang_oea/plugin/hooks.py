"""The hooks: `select_experts`, its post-processing, and the model's `forward`.

Signature: those of SGLang, forwarded as they come and bound by name, never restated.
Covered: every call of `select_experts`, eager, captured or compiled, on any device. Ids are still
    logical there, so that the expert mapping, padding masks, shared-expert columns, the recorder
    and the capture of routed experts all see the rerouted ones.
Not covered: routers that never call it (`HashTopK`, `mega_gate`, models with a fused router,
    BYPASSED and TRITON_KERNEL outputs). `core/evidence.py` names them.
"""

import functools
import importlib.util
import logging
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

from sglang_oea import __version__
from sglang_oea.core import config
from sglang_oea.core.evidence import Judge
from sglang_oea.core.layer import Rerouter
from sglang_oea.core.ranks import disagreement

from . import arguments, contract, control, model

logger = logging.getLogger("sglang_oea")
# where a patched SGLang carries the core
PATCH = "sglang.srt.layers.moe.oea"


def attach(settings: config.Config) -> "Plugin | None":
    """Check the contract and register the hooks; SGLang applies them once all plugins have run.

    Returns:
        What the hooks share, or None where a patched SGLang does the work.

    Raises:
        Refusal: the contract does not hold.
    """
    if importlib.util.find_spec(PATCH) is not None:
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
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plugin = Plugin(settings)
    HookRegistry.register(contract.SELECT_EXPERTS, plugin.select_experts, HookType.AROUND)
    HookRegistry.register(contract.POST_PROCESS, plugin.post_process, HookType.BEFORE)
    HookRegistry.register(contract.LOAD_MODEL, plugin.load_model, HookType.AROUND)
    HookRegistry.register(contract.INTERNAL_STATE, plugin.control.internal_state, HookType.AFTER)
    if contract.available(contract.LIVE_K0):
        HookRegistry.register(contract.UPDATE_HANDLERS, plugin.control.handlers, HookType.AFTER)
    else:
        logger.warning("sglang_oea: live k0 unavailable in this release")
    if contract.available(contract.LIVE_K0_CHECK):
        HookRegistry.register(contract.TOKENIZER_MANAGER, control.watch_requests, HookType.AFTER)
    return plugin


def _or_refuse(hook: Callable) -> Callable:
    """A refusal stops the process, or is logged and leaves this server stock."""

    @functools.wraps(hook)
    def guarded(self: "Plugin", *args: Any, **kwargs: Any) -> Any:
        try:
            return hook(self, *args, **kwargs)
        except config.Refusal as refusal:
            self.rerouter = None
            config.refuse(refusal, self.settings.strict)
            return None

    return guarded


class Plugin:
    """What the hooks of one process share."""

    def __init__(self, settings: config.Config):
        self.settings = settings
        self.rerouter: Rerouter | None = None
        self.control = control.Control(self)
        self.model_seen = False
        self.runner: Any = None
        # true while a select_experts() runs whose ids are to be rerouted
        self.selecting = False
        # the unhooked functions, to tell later whether the hooks arrived
        self.stock = {path: pkgutil.resolve_name(path) for path in _HOOKED}
        self.post_process_names = contract.parameters(contract.POST_PROCESS)

    def select_experts(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `select_experts`: open the region; drop a packed copy that is no longer true."""
        if not self.model_seen:
            self._refuse_unseen_model()
        rerouter = self.rerouter
        if rerouter is None or rerouter.gate.open_rows is None:
            return original(*args, **kwargs)
        if kwargs.get("dynamic_expert_bias") is not None:
            rerouter.observed[kwargs.get("layer_id")] = "its bias differs by token"
            return original(*args, **kwargs)
        self.selecting = True
        try:
            output = original(*args, **kwargs)
        finally:
            self.selecting = False
        return _without_packed_ids(output)

    def post_process(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]] | None:
        """BEFORE `_post_process_topk_ids`: reroute, if it is `select_experts` that calls."""
        if not self.selecting:
            return None
        named = dict(zip(self.post_process_names, args, strict=False)) | kwargs
        named["topk_weights"], named["topk_ids"] = self.rerouter.reroute_topk(
            named["topk_weights"],
            named["topk_ids"],
            named["router_logits"],
            named["topk_config"],
            named["layer_id"],
            named.get("num_token_non_padded"),
        )
        if "padded_rows_masked" in named:
            # rows that the router had masked hold experts again
            named["padded_rows_masked"] = False
        return (), named

    def load_model(self, original: Callable, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """AROUND `ModelRunner.load_model`: refuse before the weights load, prepare after."""
        self.model_seen = True
        wanted = not runner.is_draft_worker and self._admit(runner.server_args)
        result = original(runner, *args, **kwargs)
        if wanted:
            self._prepare(runner)
        return result

    @_or_refuse
    def _admit(self, server_args: Any) -> bool:
        from sglang.srt.layers.moe import topk

        missing = [
            path for path, stock in self.stock.items() if pkgutil.resolve_name(path) is stock
        ]
        if missing:
            raise _not_attached(missing)
        server_args = arguments.resolved(server_args)
        if arguments.is_stock_by_nature(server_args):
            logger.info("sglang_oea: a prefill server never decodes, so OEA has nothing to do here")
            return False
        enabled = getattr(topk, "routing_simulation_enabled", None)
        simulated = enabled is not None and enabled()
        conflict = arguments.conflict(server_args, self.settings, simulated)
        if conflict is not None:
            raise conflict
        arguments.warn(server_args)
        return True

    @_or_refuse
    def _prepare(self, runner: Any) -> None:
        from sglang.srt.distributed import get_tp_group

        layers = model.moe_layers(runner.model)
        if not layers and getattr(runner.server_args, "pp_size", 1) > 1:
            logger.info("sglang_oea: this pipeline stage has no MoE layers")
            return
        device = next(runner.model.parameters()).device
        rerouter = Rerouter(self.settings, layers, device, __version__)
        fingerprint = self.settings.fingerprint(__version__, rerouter.impl)
        differ = disagreement(fingerprint, get_tp_group().cpu_group)
        judge = Judge(rerouter)
        hopeless = differ or judge.before_serving()
        if hopeless is not None:
            raise hopeless
        runner.model.forward = rerouter.gate.wrap(
            runner.model.forward, after=torch.compiler.disable(lambda: self._judge(judge))
        )
        self.runner, self.rerouter = runner, rerouter

    @_or_refuse
    def _judge(self, judge: Judge) -> None:
        verdict = judge.after_forward()
        if verdict is not None:
            raise verdict

    @_or_refuse
    def _refuse_unseen_model(self) -> None:
        # said once, also where it does not stop the server
        self.model_seen = True
        raise _not_attached([contract.LOAD_MODEL])


# hooked, and without a second witness that they are
_HOOKED = (contract.SELECT_EXPERTS, contract.POST_PROCESS, contract.INTERNAL_STATE)


def _without_packed_ids(output: Any) -> Any:
    """A top-k output whose packed copy still holds the stock ids, without that copy."""
    if not hasattr(output, "packed_topk_ids"):
        return output
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    return StandardTopKOutput(output.topk_weights, output.topk_ids, output.router_logits)


def _not_attached(paths: list[str]) -> config.Refusal:
    return config.Refusal(
        "OEA is not attached, although its contract holds",
        where="SGLang's HookRegistry",
        got=f"no hook on {', '.join(paths)}",
        expected="every hook that the plugin registered",
        fix="look for 'Failed to apply hooks' in the log; another plugin may be in the way",
    )
