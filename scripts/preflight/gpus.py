"""The GPUs: how many, of which architecture, and a driver that runs torch's CUDA."""

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import NamedTuple

from preflight import probe
from preflight.report import Line

WANTED = 8
# RTX PRO 6000 Blackwell; the recipes choose kernels that exist for this architecture
CAPABILITY = "12.0"
# the first CUDA with code for compute capability 12.0
FIRST_CUDA = (12, 8)
FIELDS = "index,name,compute_cap,memory.total,memory.free,driver_version"
MIB = 2**20


class Unreadable(probe.Unanswered):
    """nvidia-smi answered, but not with what a GPU has."""


class Gpu(NamedTuple):
    """One row of nvidia-smi; memory in bytes."""

    index: int
    name: str
    capability: str
    total: int
    free: int
    driver: str


def found() -> list[Gpu]:
    """The GPUs that nvidia-smi lists.

    Raises:
        Unreadable: a row does not have what was asked for.
        Unanswered: there is no nvidia-smi, no driver, or no GPU.
    """
    answer = probe.run("nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits")
    rows = [_row(line) for line in answer.splitlines() if line.strip()]
    if not rows:
        raise probe.Unanswered("nvidia-smi lists no GPU")
    return rows


def _row(line: str) -> Gpu:
    try:
        index, name, capability, total, free, driver = (word.strip() for word in line.split(","))
        return Gpu(int(index), name, capability, int(total) * MIB, int(free) * MIB, driver)
    except ValueError:
        raise Unreadable(f"nvidia-smi answered {line.strip()!r} for {FIELDS}") from None


def number_and_kind(gpus: list[Gpu], environ: Mapping[str, str]) -> Iterator[Line]:
    """Eight of them, all of compute capability 12.0, none hidden from the server."""
    names = ", ".join(sorted({gpu.name for gpu in gpus})) or "none"
    verdict = "ok" if len(gpus) >= WANTED else "FAIL"
    fix = f"the recipe is for TP={WANTED}; look for a missing one with lspci and in dmesg"
    yield Line(verdict, "GPUs", f"{len(gpus)} of {WANTED} ({names})", fix)
    others = [f"GPU {g.index} has {g.capability}" for g in gpus if g.capability != CAPABILITY]
    if others:
        fix = f"the recipe chooses kernels for {CAPABILITY} alone; use SGLang's recipe for this GPU"
        yield Line("FAIL", "compute capability", ", ".join(others) + f", not {CAPABILITY}", fix)
    elif gpus:
        yield Line("ok", "compute capability", CAPABILITY)
    # nvidia-smi lists them all the same
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (count := len([v for v in visible.split(",") if v])) < WANTED:
        found = f"{visible!r} shows {count} GPUs to the server"
        yield Line("FAIL", "CUDA_VISIBLE_DEVICES", found, f"unset it, or name {WANTED}")


def driver(gpus: list[Gpu]) -> Iterator[Line]:
    """A driver that runs the CUDA runtime beside which torch is installed."""
    # "CUDA Version: 12.8" up to recent drivers, "CUDA UMD Version" in the newest
    shown = re.search(r"CUDA (?:UMD )?Version:\s*(\d+)\.(\d+)", probe.run("nvidia-smi"))
    if shown is None:
        raise probe.Unanswered("nvidia-smi shows no CUDA version")
    cuda, needed = (int(shown[1]), int(shown[2])), _runtime()
    found = f"{gpus[0].driver}, for CUDA up to {cuda[0]}.{cuda[1]}"
    if cuda < FIRST_CUDA:
        fix = "compute capability 12.0 begins with CUDA 12.8: install driver 570 or later"
        yield Line("FAIL", "driver", found, fix)
    # within one major release a newer runtime runs on an older driver
    elif needed is not None and cuda[0] < needed[0]:
        fix = f"update the driver, or install torch for CUDA {cuda[0]}"
        yield Line("FAIL", "driver", f"{found}; torch brings CUDA {needed[0]}.{needed[1]}", fix)
    else:
        yield Line("ok", "driver", found)


def _runtime() -> tuple[int, int] | None:
    """The CUDA runtime that came with torch from its index; None with a torch from elsewhere."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            major, minor = metadata.version(name).split(".")[:2]
            return int(major), int(minor)
        except metadata.PackageNotFoundError:
            continue
    return None
