"""What the launcher would run with the same arguments, asked of the launcher itself."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint import Checkpoint

from preflight import probe
from preflight.report import Line

LAUNCHER = Path(__file__).resolve().parents[1] / "launch_glm5_nvfp4.sh"
# asked for where no SGLang is installed that would decide
NEWEST = "0.5.23"
UNFUSED = "--disable-shared-experts-fusion"
# from here on SGLang compares the quantisation of shared and routed experts by itself
COMPARES = (0, 5, 18)


@dataclass(frozen=True)
class Launch:
    """SGLang's flags by name, an empty value where they have none; or why there are none."""

    flags: dict[str, str] = field(default_factory=dict)
    refusal: str = ""


def ask(arguments: Sequence[str], installed: str | None) -> Launch:
    """The launcher's dry run.

    Args:
        arguments: the launcher's own.
        installed: SGLang's version, None where it is not there.
    """
    version = [] if installed else ["--sglang-version", NEWEST]
    try:
        command = ["bash", str(LAUNCHER), "--dry-run", *version, *arguments]
        done = probe.complete(command, seconds=60)
    except probe.Unanswered as error:
        return Launch(refusal=str(error))
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return Launch(refusal=said.removeprefix("error: "))
    return Launch(flags(done.stdout))


def flags(printed: str) -> dict[str, str]:
    """The flags in a dry run: one a line, with a comment behind."""
    found = {}
    for line in printed.splitlines():
        if line.lstrip().startswith("--"):
            name, *values = shlex.split(line, comments=True)
            name, _, value = name.partition("=")
            found[name] = value or " ".join(values)
    return found


def accepted(launch: Launch) -> Iterator[Line]:
    """Whether the launcher takes these arguments; it knows the releases that have a recipe."""
    if launch.refusal:
        fix = f"the launcher would stop here; {LAUNCHER.name} --help lists what it takes"
        yield Line("FAIL", "launcher", launch.refusal, fix)
    else:
        yield Line("ok", "launcher", f"would start SGLang with {len(launch.flags)} flags")


def shared_experts(
    checkpoint: Checkpoint, launch: Launch, release: tuple[int, ...]
) -> Iterator[Line]:
    """Whether shared experts would be fused that do not fit among the routed ones."""
    if not checkpoint.excludes_shared_experts:
        yield Line("ok", "shared experts", "quantised like the routed ones")
    elif UNFUSED in launch.flags:
        yield Line("ok", "shared experts", f"kept apart by the checkpoint, and by {UNFUSED}")
    elif release >= COMPARES:
        yield Line("ok", "shared experts", "kept apart by the checkpoint; this release sees it")
    else:
        found = "kept out of FP4 by the checkpoint, but SGLang would fuse them with the routed ones"
        fix = "the load would end in a size mismatch (SGLang 29562): launch with "
        yield Line("FAIL", "shared experts", found, fix + UNFUSED)
