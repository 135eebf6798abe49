"""The checkpoint: where it is, whether all of it is there, and whether it is the model meant."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkpoint import Checkpoint, CheckpointError

from preflight.report import Line

ARCHITECTURE, EXPERTS, SLOTS = "GlmMoeDsaForCausalLM", 256, 8
GB = 10**9
# the smallest published NVFP4 copy of GLM-5
DOWNLOAD_BYTES = 410 * GB
# compiled kernels, graphs' caches and logs of a first start
SCRATCH_BYTES = 10 * GB


def hub(environ: Mapping[str, str]) -> Path:
    """The folder into which Hugging Face's library downloads."""
    home = environ.get("HF_HOME") or Path(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def locate(model: str, environ: Mapping[str, str]) -> Path | None:
    """The folder of a checkpoint, given as such or as an ID that has been downloaded."""
    folder = Path(model).expanduser()
    if folder.is_dir() or not _is_id(model):
        return folder
    cached = hub(environ) / f"models--{model.replace('/', '--')}"
    try:
        snapshot = cached / "snapshots" / (cached / "refs/main").read_text().strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None


def _is_id(model: str) -> bool:
    return model.count("/") == 1 and model[0] not in "/.~"


def read(folder: Path | None) -> Checkpoint | None:
    """The checkpoint of a folder, or None where there is none to read."""
    try:
        return Checkpoint.read(folder) if folder else None
    except CheckpointError:
        return None


def described(model: str, folder: Path | None, mtp: bool) -> Iterator[Line]:
    """What the settings beside the weights say of the model."""
    if folder is None:
        fix = f"the server would fetch it first: hf download {model}"
        yield Line("warn", "checkpoint", f"{model} is not downloaded", fix)
        return
    try:
        checkpoint = Checkpoint.read(folder)
    except CheckpointError as error:
        fix = "give --model the folder that holds config.json, or a Hugging Face ID"
        yield Line("FAIL", "checkpoint", str(error), fix)
        return
    experts = f"{checkpoint.architecture}: {checkpoint.experts} experts, top-{checkpoint.slots}"
    expected = f"{ARCHITECTURE}: {EXPERTS} experts, top-{SLOTS}"
    fix = f"expected {expected}; give --model a GLM-5 checkpoint"
    yield Line("ok" if experts == expected else "FAIL", "model", experts, fix)
    fix = "96 GB a GPU hold no other: give --model an NVFP4 copy, such as lukealonso/GLM-5-NVFP4"
    named = checkpoint.quantised_to or "no quantisation"
    yield Line("ok" if checkpoint.nvfp4 else "FAIL", "quantisation", named, fix)
    if mtp:
        fix = "without its weights nothing is drafted: use a copy with layer 78, such as "
        fix += "festr2/GLM-5-NVFP4-MTP, or leave out --mtp"
        verdict = "ok" if checkpoint.mtp_layers else "FAIL"
        yield Line(verdict, "MTP", f"{checkpoint.mtp_layers} layers in the checkpoint", fix)


def complete(checkpoint: Checkpoint) -> Iterator[Line]:
    """Whether every shard is there, and as long as its header and the index say."""
    broken = [shard for shard in checkpoint.shards if shard.problem]
    held = sum(shard.tensor_bytes for shard in checkpoint.shards)
    if not checkpoint.shards:
        fix = "fetch the weights: there is neither an index nor a *.safetensors file"
        yield Line("FAIL", "shards", f"none in {checkpoint.folder}", fix)
    elif broken:
        first = f"{broken[0].name}: {broken[0].problem}"
        found = f"{len(broken)} of {len(checkpoint.shards)} are not whole ({first})"
        yield Line("FAIL", "shards", found, f"fetch again into {checkpoint.folder}")
    elif checkpoint.index_bytes not in (None, held):
        found = f"{held} bytes of tensors, the index says {checkpoint.index_bytes}"
        fix = "each shard is whole, so the index may be of another revision: fetch both again"
        yield Line("warn", "shards", found, fix)
    else:
        yield Line("ok", "shards", f"{len(checkpoint.shards)}, {held / GB:.1f} GB of tensors")


def disk(folder: Path | None, checkpoint: Checkpoint | None, cache: Path) -> Iterator[Line]:
    """Room for what is still to be fetched, and for what a first start leaves behind."""
    place, missing = folder or cache, 0 if folder else DOWNLOAD_BYTES
    if checkpoint and checkpoint.index_bytes and any(s.problem for s in checkpoint.shards):
        there = sum(shard.tensor_bytes for shard in checkpoint.shards if not shard.problem)
        missing = max(0, checkpoint.index_bytes - there)
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.0f} GB free at {place}, {missing / GB:.0f} GB to fetch"
    if free < missing:
        fix = "make room, or set HF_HOME to a larger disk"
        yield Line("FAIL", "disk", found, fix)
    elif free < missing + SCRATCH_BYTES:
        fix = f"keep {SCRATCH_BYTES // GB} GB more for compiled kernels and logs"
        yield Line("warn", "disk", found, fix)
    else:
        yield Line("ok", "disk", found)
