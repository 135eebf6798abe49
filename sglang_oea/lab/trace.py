"""What a server recorded under `SGLANG_OEA_TRACE`: router logits, and what was made of them.

`read` gives the manifest, `Trace.calls` the calls, one forward in memory at a time. Both refuse a
folder that is not what `sglang_oea/plugin/trace.py` writes.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sglang_oea.core.scores import Router

from .errors import LabError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Call:
    """One MoE layer in one forward: what the routing step saw, and what was served.

    logits: `[rows, N]`, as the gate gave them; bias: `[N]` or None
    valid: `[rows]` bool; k0: `[]` integer, the one for this many valid rows
    stock_ids, stock_weights, ids, weights: `[rows, K]`, shared experts' columns last
    """

    step: int
    layer_id: int
    router: Router
    logits: torch.Tensor
    bias: torch.Tensor | None
    valid: torch.Tensor
    k0: torch.Tensor
    stock_ids: torch.Tensor
    stock_weights: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


# what a shard holds of each call, by name
TENSORS = tuple(field.name for field in dataclasses.fields(Call))[3:]


@dataclass(frozen=True)
class Step:
    """One forward: its shard, and the layer and the number of rows of each call in it."""

    file: str
    calls: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Trace:
    """A manifest, and the calls that it describes."""

    folder: Path
    version: str
    impl: str
    k0: int | str
    max_rank: int | None
    modes: tuple[str, ...]
    routers: dict[int, Router]
    steps_wanted: int
    complete: bool
    steps: tuple[Step, ...]

    def calls(self) -> Iterator[Call]:
        """Every recorded call, forward by forward.

        Raises:
            LabError: a shard is missing, cannot be read, or does not fit the manifest.
        """
        for number, step in enumerate(self.steps):
            tensors = _load(self.folder / step.file)
            calls = [
                Call(
                    number,
                    layer_id,
                    self.routers[layer_id],
                    *(tensors.pop(f"{place}.{name}", None) for name in TENSORS),
                )
                for place, (layer_id, _) in enumerate(step.calls)
            ]
            problems = [
                f"call {place}: {problem}"
                for place, (call, (_, rows)) in enumerate(zip(calls, step.calls, strict=True))
                if (problem := _misfit(call, rows))
            ]
            if tensors:
                problems.append(f"{sorted(tensors)[0]} of no call")
            if problems:
                raise _bad_shard(self.folder / step.file, problems[0], "what the manifest says")
            yield from calls


def read(folder: Path) -> Trace:
    """Read a trace's manifest.

    Raises:
        LabError: there is none, or it is not one that this version writes.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad_manifest(path, str(error)) from None
    found = manifest.get("format") if isinstance(manifest, dict) else manifest
    if found != FORMAT:
        raise _bad_manifest(path, f"format {json.dumps(found)[:40]}")
    try:
        return _parsed(folder, manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad_manifest(path, f"{type(error).__name__}: {error}") from None


def _parsed(folder: Path, manifest: dict[str, Any]) -> Trace:
    routers = {int(layer_id): Router(**router) for layer_id, router in manifest["routers"].items()}
    steps = tuple(
        Step(step["file"], tuple((call["layer"], call["rows"]) for call in step["calls"]))
        for step in manifest["steps"]
    )
    unknown = {layer_id for step in steps for layer_id, _ in step.calls} - set(routers)
    if unknown:
        raise ValueError(f"calls of layers without a router: {sorted(unknown)}")
    return Trace(
        folder=folder,
        version=manifest["version"],
        impl=manifest["impl"],
        k0=manifest["k0"],
        max_rank=manifest["max_rank"],
        modes=tuple(manifest["modes"]),
        routers=routers,
        steps_wanted=manifest["steps_wanted"],
        complete=manifest["complete"],
        steps=steps,
    )


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise _bad_shard(path, "no such file", "every file that the manifest names") from None
    except (OSError, SafetensorError) as error:
        raise _bad_shard(path, str(error), "a safetensors file") from None


def _misfit(call: Call, rows: int) -> str | None:
    """What of a call is not as its router and its number of rows demand."""
    router = call.router
    width = router.slots + router.shared_slots
    # [1], or nothing where there are no logits
    experts = () if call.logits is None else call.logits.shape[-1:]
    shapes = {name: (rows, width) for name in ("stock_ids", "stock_weights", "ids", "weights")}
    shapes |= {"logits": (rows, *experts), "valid": (rows,), "k0": ()}
    shapes |= {"bias": experts} if router.biased else {}
    for name in TENSORS:
        tensor = getattr(call, name)
        got = None if tensor is None else tuple(tensor.shape)
        if got != shapes.get(name):
            return f"{name} of shape {got}, not {shapes.get(name)}"
    if experts[0] < router.slots:
        return f"{experts[0]} experts for {router.slots} slots"
    return None


def _bad_manifest(path: Path, got: str) -> LabError:
    return LabError(
        "this is not a trace",
        where=path,
        got=got,
        expected=f"the manifest of a trace, format {FORMAT}",
        fix="name a folder that a server of this version filled under SGLANG_OEA_TRACE; it writes "
        "the manifest after the first decode forward",
    )


def _bad_shard(path: Path, got: str, expected: str) -> LabError:
    return LabError(
        "this trace is damaged",
        where=path,
        got=got,
        expected=expected,
        fix="copy the whole folder again, or record anew",
    )
