"""Did it run? A requested OEA that does not is refused on evidence, not on lists of backends."""

import logging
from collections.abc import Mapping

import torch

from .config import Refusal
from .layer import Rerouter, describe

logger = logging.getLogger("sglang_oea")
UNREACHED = "its forward did not choose experts through select_experts()"


class Judge:
    """Compares the layers that the routing step reached with the model's MoE layers, once."""

    def __init__(self, rerouter: Rerouter):
        self.rerouter = rerouter
        self.done = False

    def before_serving(self) -> Refusal | None:
        """At load: a refusal where it is already clear that no layer can be rerouted."""
        reasons = self.rerouter.left_alone()
        if len(reasons) == len(self.rerouter.layers):
            return _nothing_rerouted(reasons)
        return None

    def after_forward(self) -> Refusal | None:
        """After the first applicable forward outside a capture: the verdict. Synchronises, once.

        A captured graph is judged too, since every runner executes a forward before it records one.
        """
        if self.done or _is_capturing():
            return None
        self.done = True
        rerouter = self.rerouter
        reached, _ = rerouter.stats.read()
        reasons = rerouter.left_alone()
        missed = {
            layer_id: reasons.get(layer_id, UNREACHED)
            for layer_id in rerouter.layers
            if not reached[rerouter.index[layer_id]]
        }
        if len(missed) == len(rerouter.layers):
            return _nothing_rerouted(missed)
        if missed:
            logger.error(
                "sglang_oea: %d of %d MoE layers are not rerouted: %s",
                len(missed),
                len(rerouter.layers),
                describe(missed),
            )
        logger.info(
            "sglang_oea %s is on: k0=%s, modes=%s, impl=%s, %d of %d MoE layers rerouted",
            rerouter.version,
            rerouter.k0,
            ",".join(rerouter.config.modes),
            rerouter.impl,
            sum(reached),
            len(rerouter.layers),
        )
        return None


def _nothing_rerouted(reasons: Mapping[int, str]) -> Refusal:
    return Refusal(
        "no MoE layer of this model is rerouted",
        where="the loaded model",
        got=describe(reasons) or "a model without MoE layers",
        expected="a MoE layer whose experts SGLang's select_experts() chooses",
        fix="for a Mixture-of-Experts model choose a runner that takes its routing from SGLang "
        "(--moe-runner-backend triton, or flashinfer_cutlass for NVFP4); "
        "otherwise unset SGLANG_OEA_K0",
    )


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
