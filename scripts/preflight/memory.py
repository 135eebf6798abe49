"""Memory of a GPU against the need: weights, and the KV cache that the requests fill.

Weights: 57.06 a GPU with lukealonso/GLM-5-NVFP4 at TP=8, as rtx6kpro's models/glm5.md reports from
SGLang, whose "GB" are GiB. An eighth of that checkpoint is 48: not all of it is split. The eighth
of the checkpoint given counts where it is more.

KV: 78 x (1152 + 132) bytes a token, on every GPU: (512 + 64) BF16 numbers of latent attention, and
the indexer's 128 FP8 numbers with their scale. It agrees with the same report: 29.32 for 314,304
tokens. An FP8 cache needs less; this is the upper bound.
"""

from collections.abc import Iterator

from checkpoint import Checkpoint

from preflight.gpus import WANTED, Gpu
from preflight.report import Line

GIB = 2**30
MEASURED_WEIGHTS = round(57.06 * GIB)
LAYERS, KV_BYTES_PER_LAYER = 78, 2 * (512 + 64) + 128 + 4
# layer 78 in BF16, as in festr2/GLM-5-NVFP4-MTP
MTP_BYTES = 19 * 10**9
# where the launcher's own --mem-fraction-static is not known
STATIC_FRACTION = 0.88


def weights(checkpoint: Checkpoint | None, mtp: bool) -> float:
    """Bytes of weights on each GPU."""
    eighth = sum(s.tensor_bytes for s in checkpoint.shards) / WANTED if checkpoint else 0
    return max(MEASURED_WEIGHTS, eighth) + (MTP_BYTES / WANTED if mtp else 0)


def kv_bytes(tokens: int, mtp: bool) -> int:
    """Bytes of KV cache on each GPU; an MTP layer keeps a cache of its own."""
    return tokens * (LAYERS + mtp) * KV_BYTES_PER_LAYER


def enough(
    gpus: list[Gpu],
    checkpoint: Checkpoint | None,
    *,
    context: int,
    max_running: int,
    mtp: bool,
    fraction: float,
) -> Iterator[Line]:
    """Whether the weights and one request fit, which is a must, and all requests, which is not.

    Args:
        gpus: what nvidia-smi lists; with none the need alone is said.
        checkpoint: what will be loaded, where it is on this machine.
        context: tokens of a request, prompt and answer.
        max_running: requests at once.
        mtp: with the MTP layer.
        fraction: `--mem-fraction-static`: SGLang keeps the rest for activations and graphs.
    """
    loaded = weights(checkpoint, mtp)
    one, every = (kv_bytes(context * requests, mtp) for requests in (1, max_running))
    need = (
        f"weights {loaded / GIB:.1f} + KV {every / GIB:.1f} GiB ({max_running} x {context} tokens "
        f"x {LAYERS + mtp} x {KV_BYTES_PER_LAYER} B) at --mem-fraction-static {fraction:g}"
    )
    if not gpus:
        yield Line("warn", "memory", f"not judged without GPUs; each needs {need}")
        return
    least = min(gpus, key=lambda gpu: gpu.free)
    room = least.free * fraction - loaded
    found = f"GPU {least.index} has the least free, {least.free / GIB:.1f} of "
    found += f"{least.total / GIB:.1f} GiB; {need}"
    if room < one:
        fix = "not even one request fits: end what else holds the GPU (nvidia-smi), or lower "
        yield Line("FAIL", "memory", found, fix + "--context")
    elif room < every:
        tokens = int(room / kv_bytes(1, mtp))
        fix = f"room for {tokens} tokens in BF16: SGLang will queue requests or take some back; "
        yield Line("warn", "memory", found, fix + "lower --max-running or --context")
    else:
        yield Line("ok", "memory", found)
