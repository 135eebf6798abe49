"""Server arguments under which OEA would be inert, wrong, or break a promise of SGLang's."""

import logging
from types import SimpleNamespace
from typing import Any

from .config import Config, Refusal

logger = logging.getLogger("sglang_oea")


def resolved(server_args: Any) -> Any:
    """The arguments as they are in force: 0.5.23 keeps the record as typed, and decides apart."""
    resolve = getattr(server_args, "resolved_dict", None)
    return server_args if resolve is None else SimpleNamespace(**resolve())


def conflict(server_args: Any, config: Config, simulated: bool) -> Refusal | None:
    """The first conflict between SGLang's resolved `ServerArgs` and the settings, or None.

    Args:
        server_args: read by attribute; a release that lacks an argument cannot conflict with it.
        config: the settings.
        simulated: whether SGLang overrides routing (`routing_simulation_enabled()`).
    """

    def value(name: str) -> Any:
        return getattr(server_args, name, None)

    speculative = value("speculative_algorithm")
    gathers_rows = (value("attn_dp_size") or 1) > 1 or value("enable_dp_attention")
    conflicts = (
        (
            value("enable_deterministic_inference"),
            "--enable-deterministic-inference",
            "answers that may depend on the batch; deterministic inference promises the opposite",
            "drop --enable-deterministic-inference, or unset SGLANG_OEA_K0",
        ),
        (
            speculative and "verify" not in config.modes,
            f"--speculative-algorithm {speculative} with SGLANG_OEA_MODES={','.join(config.modes)}",
            "the mode verify: a speculative target model never runs a decode forward",
            "set SGLANG_OEA_MODES=decode,verify",
        ),
        (
            not speculative and "decode" not in config.modes,
            f"SGLANG_OEA_MODES={','.join(config.modes)} without --speculative-algorithm",
            "a mode of this server: it never verifies, so nothing would be rerouted",
            "set SGLANG_OEA_MODES=decode",
        ),
        (
            value("is_embedding") or value("dllm_algorithm"),
            "--is-embedding or --dllm-algorithm",
            "a server that decodes token by token",
            "unset SGLANG_OEA_K0",
        ),
        (
            gathers_rows and value("moe_a2a_backend") in (None, "none"),
            "data-parallel attention without an all-to-all backend",
            "ranks in one forward mode: here rows are gathered from ranks that may differ",
            "use plain tensor parallelism, or unset SGLANG_OEA_K0",
        ),
        (
            value("enable_two_batch_overlap"),
            "--enable-two-batch-overlap",
            "MoE layers that see a forward's rows together: here they are split in two",
            "drop --enable-two-batch-overlap, or unset SGLANG_OEA_K0",
        ),
        (
            value("ep_dispatch_algorithm") == "fake",
            "--ep-dispatch-algorithm fake",
            "real router logits: fake dispatch replaces them",
            "choose another --ep-dispatch-algorithm",
        ),
        (
            simulated,
            "SGLANG_SIMULATE_UNIFORM_EXPERTS or SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
            "experts that the router chose",
            "unset the simulation's variable, or SGLANG_OEA_K0",
        ),
        (
            config.trace is not None and _captures_decode(server_args),
            "SGLANG_OEA_TRACE with captured decode graphs",
            "eager decode: a graph is replayed without the host, which could record nothing",
            "add --disable-cuda-graph, or unset SGLANG_OEA_TRACE",
        ),
        (
            config.trace is not None and max(value("dp_size") or 1, value("pp_size") or 1) > 1,
            "SGLANG_OEA_TRACE with --dp-size or --pp-size above 1",
            "one replica and one pipeline stage: each would write into the same folder",
            "serve with tensor parallelism alone, or unset SGLANG_OEA_TRACE",
        ),
    )
    for conflicting, got, expected, fix in conflicts:
        if conflicting:
            return Refusal(
                "OEA cannot run with these server arguments",
                where="arguments and environment of the server",
                got=got,
                expected=expected,
                fix=fix,
            )
    return None


def _captures_decode(server_args: Any) -> bool:
    if getattr(server_args, "device", None) == "cpu":
        # without torch.compile SGLang has no graphs there, whatever its flags say
        return bool(getattr(server_args, "enable_torch_compile", None))
    graphs = getattr(server_args, "cuda_graph_config", None)
    if graphs is None:
        # 0.5.9 has one flag; where even that is missing, a capture is refused when it is seen
        return getattr(server_args, "disable_cuda_graph", None) is False
    # by name: a dictionary in resolved arguments, SGLang's own record in 0.5.18
    decode = graphs["decode"]
    backend = decode["backend"] if isinstance(decode, dict) else decode.backend
    return backend != "disabled"


def is_stock_by_nature(server_args: Any) -> bool:
    """Whether this is the prefill server of a disaggregated pair, which never decodes."""
    return getattr(server_args, "disaggregation_mode", None) == "prefill"


def warn(server_args: Any) -> None:
    """Say what lowers the gain without stopping it."""
    if getattr(server_args, "enable_mixed_chunk", False):
        logger.warning(
            "sglang_oea: --enable-mixed-chunk puts decode rows into prefill forwards, "
            "which are not rerouted"
        )
