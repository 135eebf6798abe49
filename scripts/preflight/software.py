"""The Python that will serve: transformers, SGLang, and OEA's contract with it."""

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from preflight import probe
from preflight.report import Line

# the first transformers with the class GlmMoeDsaConfig
TRANSFORMERS = (5, 2)
# `sglang-oea check` imports SGLang
CHECK_SECONDS = 300


def installed(name: str) -> str | None:
    """The version of a distribution in this Python."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare by."""
    return tuple(int(part) for part in re.match(r"[0-9.]*", version)[0].split(".") if part)


def transformers() -> Iterator[Line]:
    """Whether transformers knows `glm_moe_dsa`."""
    found = installed("transformers")
    wanted = ".".join(map(str, TRANSFORMERS))
    fix = f"glm_moe_dsa begins with {wanted}, and SGLang 0.5.9 pins an older one: "
    fix += f"pip install --upgrade 'transformers>={wanted}'"
    known = found is not None and numbers(found) >= TRANSFORMERS
    yield Line("ok" if known else "FAIL", "transformers", found or "not installed", fix)


def sglang() -> Iterator[Line]:
    """Whether SGLang is there; the launcher knows for which releases there is a recipe."""
    found = installed("sglang")
    fix = f"install it into {sys.executable}, or set PYTHON to the one that has it"
    yield Line("ok" if found else "FAIL", "sglang", found or "not installed", fix)


def contract(folder: Path | None, k0: str | None, mtp: bool) -> Iterator[Line]:
    """What `sglang-oea check` finds amiss, with the settings that the launcher would give."""
    if installed("sglang") is None:
        raise probe.Unanswered("sglang is not installed")
    environ = {name: value for name, value in os.environ.items() if name != "SGLANG_OEA_K0"}
    # the package that is installed, not one that lies in the current folder (Python 3.11 on)
    environ["PYTHONSAFEPATH"] = "1"
    if k0:
        environ["SGLANG_OEA_K0"] = k0
    if mtp:
        environ.setdefault("SGLANG_OEA_MODES", "decode,verify")
    command = [sys.executable, "-m", "sglang_oea.cli", "check"]
    command += ["--model", str(folder)] if folder else []
    done = probe.complete(command, seconds=CHECK_SECONDS, environ=environ)
    lines = list(findings(done.stdout))
    if done.returncode not in (0, 1) or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        fix = f"install sglang_oea into {sys.executable}: pip install --no-deps ."
        yield Line("FAIL", "OEA", f"sglang-oea check exited {done.returncode}: {said}", fix)
        return
    # that OEA is off is no fault where stock was asked for
    quiet = () if k0 else ("OEA, settings",)
    amiss = [line for line in lines if line.verdict != "ok"]
    yield from (line for line in amiss if line.verdict == "FAIL" or line.subject not in quiet)
    if not any(line.verdict == "FAIL" for line in amiss):
        settings = [line.found for line in lines if line.subject == "OEA, settings"]
        found = f"sglang-oea check: {len(lines)} lines, no FAIL; settings: {', '.join(settings)}"
        yield Line("ok", "OEA", found)


def findings(answer: str) -> Iterator[Line]:
    """The lines of `sglang-oea check`, the fix or the rest of one below it."""
    for block in re.split(r"^(?=\[)", answer, flags=re.MULTILINE):
        head, *rest = block.splitlines() or [""]
        found = re.match(r"\[(ok|warn|FAIL) *\] ([^:]+): (.*)", head)
        if found:
            below = [line.strip() for line in rest if line.startswith(" ")]
            fix = " ".join(line.removeprefix("-> ") for line in below)
            yield Line(found[1], f"OEA, {found[2]}", found[3], fix)
