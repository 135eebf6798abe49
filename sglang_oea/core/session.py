"""OEA in one process of a server: what a host asks at each of its places, and nothing else.

    admit          before the model loads: may OEA run with these server arguments?
    prepare        once it has loaded: build the rerouter, watch the model's forward
    reroute_topk   after the host's top-k
    report, set_k0, why_bad_k0   from the scheduler, between two forwards

The plugin asks from its hooks, a patched SGLang from its own code (`active.py`). A process that was
not asked for OEA gets its own tensors back and imports no kernel.
"""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import arguments
from .config import Config, Refusal, host_variable, refuse

if TYPE_CHECKING:
    from .layer import Rerouter

logger = logging.getLogger("sglang_oea")
SIMULATIONS = ("SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS")
# what SGLang's EnvBool takes for true
TRUE = ("true", "1", "yes", "y")


def _or_refuse(step: Callable) -> Callable:
    """A refusal of this step stops the process, or is logged and leaves this server stock."""

    @functools.wraps(step)
    def guarded(self: "Session", *args: Any, **kwargs: Any) -> None:
        try:
            step(self, *args, **kwargs)
        except Refusal as refusal:
            self.refuse(refusal)

    return guarded


class Session:
    """OEA for the one model that this process serves.

    Args:
        settings: what was asked for; None where OEA is off.
    """

    def __init__(self, settings: Config | None):
        self.settings = settings
        self.admitted = False
        self.rerouter: Rerouter | None = None
        self.runner: Any = None
        # told what each call of `reroute_topk` saw and gave, while a host wants to know
        self.recorder: Any = None

    @property
    def is_open(self) -> bool:
        """Whether a forward that is to be rerouted runs right now."""
        return self.rerouter is not None and self.rerouter.gate.open_rows is not None

    def refuse(self, refusal: Refusal) -> None:
        """Stop with this refusal, or with `SGLANG_OEA_STRICT=0` log it and stay stock."""
        self.admitted, self.rerouter, self.recorder = False, None, None
        refuse(refusal, self.settings.strict)

    @_or_refuse
    def admit(self, runner: Any) -> None:
        """Before SGLang's `ModelRunner` loads its weights: refuse what cannot be served.

        Raises:
            Refusal: the server arguments and OEA exclude each other.
        """
        if self.settings is None or runner.is_draft_worker:
            return
        server_args = arguments.resolved(runner.server_args)
        if arguments.is_stock_by_nature(server_args):
            logger.info("sglang_oea: a prefill server never decodes, so OEA has nothing to do here")
            return
        simulated = any(host_variable(name).lower() in TRUE for name in SIMULATIONS)
        conflict = arguments.conflict(server_args, self.settings, simulated)
        if conflict is not None:
            raise conflict
        arguments.warn(server_args)
        self.admitted = True

    @_or_refuse
    def prepare(
        self,
        runner: Any,
        topk_type: type[torch.nn.Module],
        experts_type: type[torch.nn.Module],
        tp_cpu_group: Any,
    ) -> None:
        """Once the weights are loaded: build the rerouter and wrap the model's `forward`.

        Args:
            runner: SGLang's `ModelRunner`.
            topk_type, experts_type: SGLang's `TopK` and `FusedMoE`.
            tp_cpu_group: the tensor-parallel group's CPU process group.

        Raises:
            Refusal: no layer can be rerouted, or the ranks disagree.
        """
        if not self.admitted or runner.is_draft_worker:
            return
        # only now: a process without OEA needs no kernel
        from . import evidence, layer, model, ranks

        server_args = arguments.resolved(runner.server_args)
        backend = getattr(server_args, "moe_runner_backend", None)
        layers = model.moe_layers(runner.model, topk_type, experts_type, backend)
        if not layers and getattr(server_args, "pp_size", 1) > 1:
            logger.info("sglang_oea: this pipeline stage has no MoE layers")
            return
        rerouter = layer.Rerouter(self.settings, layers, model.device_of(runner.model))
        fingerprint = self.settings.fingerprint(rerouter.version, rerouter.impl)
        differ = ranks.disagreement(fingerprint, tp_cpu_group)
        judge = evidence.Judge(rerouter)
        hopeless = differ or judge.before_serving()
        if hopeless is not None:
            raise hopeless
        runner.model.forward = rerouter.gate.wrap(
            runner.model.forward, after=torch.compiler.disable(lambda: self._after_forward(judge))
        )
        self.runner, self.rerouter = runner, rerouter

    @_or_refuse
    def _after_forward(self, judge: Any) -> None:
        verdict = judge.after_forward()
        if verdict is not None:
            raise verdict
        if self.recorder is not None:
            self.recorder.end_forward()

    def reroute_topk(
        self,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        router_logits: torch.Tensor,
        topk_config: Any,
        layer_id: int | None,
        num_token_non_padded: torch.Tensor | None = None,
        left_alone: str | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The selection of one layer, see `Rerouter.reroute_topk`; outside of decode as it came.

        Args:
            left_alone: why this call must not be rerouted, where the host knows of a reason.
        """
        # a host asks too, before it prepares the arguments; to be safe without that is free
        if not self.is_open:
            return topk_weights, topk_ids
        if left_alone is not None:
            self.rerouter.observed[layer_id] = left_alone
            return topk_weights, topk_ids
        seen = (topk_weights, topk_ids, router_logits, topk_config, layer_id, num_token_non_padded)
        weights, ids = self.rerouter.reroute_topk(*seen)
        if self.recorder is not None:
            self.recorder.record(*seen, served_weights=weights, served_ids=ids)
        return weights, ids

    def report(self) -> dict[str, Any]:
        """The `oea` field of `/server_info`. Synchronises."""
        if self.rerouter is None:
            return {"enabled": False}
        with self._between_forwards():
            return self.rerouter.report()

    def why_bad_k0(self, value: Any) -> str | None:
        """Why this server cannot take this k0 now, or None."""
        if self.rerouter is None:
            return "OEA is not running on this server"
        return why_no_k0(value)

    def set_k0(self, k0: int) -> None:
        """Use one k0 in every layer from the next step on; 0 is off."""
        with self._between_forwards():
            self.rerouter.set_k0(k0)
        logger.info("sglang_oea: k0 is now %d%s", k0, "" if k0 else " (off)")

    @contextlib.contextmanager
    def _between_forwards(self) -> Iterator[None]:
        # with the overlap scheduler forwards run on a stream of their own, else on the current one:
        # ordered after both and before both, this is between two steps either way
        stream = getattr(self.runner, "forward_stream", None)
        if not isinstance(stream, torch.cuda.Stream):
            yield
            return
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)


def why_no_k0(value: Any) -> str | None:
    """Why a live k0 is not one, or None."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return None
    return f"oea_k0={json.dumps(value)}; expected a whole number >= 0 (0 is off)"
