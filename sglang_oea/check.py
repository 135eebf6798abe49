"""`sglang-oea check`: one line a fact, `ok`, `warn` or `FAIL`, and what to do about it."""

import importlib.metadata
import json
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sglang_oea.core import config
from sglang_oea.plugin import ENTRY_POINT, GROUP, contract

PACKAGES = ("sglang", "torch", "triton", "transformers", "flashinfer-python", "sglang-kernel")


class Line(NamedTuple):
    """One finding; `fix` is printed below a line that is not ok."""

    verdict: str
    subject: str
    found: str
    fix: str = ""


def run(model: str | None) -> int:
    """Print the report; 1 if any line is a FAIL, else 0."""
    failed = False
    for line in _lines(model):
        failed |= line.verdict == "FAIL"
        print(f"[{line.verdict:<4}] {line.subject}: {line.found}", flush=True)
        if line.fix and line.verdict != "ok":
            print(f"       -> {line.fix}")
    print("sglang_oea cannot run here" if failed else "sglang_oea can run here")
    return int(failed)


def _lines(model: str | None) -> Iterator[Line]:
    yield from versions()
    yield from plugin()
    yield from settings()
    yield from contract_items()
    if model is not None:
        yield from checkpoint(Path(model))


def versions() -> Iterator[Line]:
    """Python and the packages that matter, from metadata alone."""
    yield Line("ok", "python", platform.python_version())
    for name in PACKAGES:
        try:
            yield Line("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            needed = name in ("sglang", "torch")
            fix = f"install sglang {contract.SUPPORTED}" if needed else ""
            yield Line("FAIL" if needed else "warn", name, "not installed", fix)
    installed = contract.installed_version()
    if installed is not None and installed not in contract.TESTED:
        yield Line("warn", "sglang release", f"{installed} is untested", contract.SUPPORTED)


def plugin() -> Iterator[Line]:
    """Whether SGLang will find the entry point, and whether a variable keeps it out."""
    if contract.carries_patch():
        yield Line(
            "ok", "patch", "this SGLang carries OEA itself; the plugin leaves the work to it"
        )
        return
    entry_points = [
        e for e in importlib.metadata.entry_points(group=GROUP) if e.name == ENTRY_POINT
    ]
    if not entry_points:
        fix = "install this package into the environment of SGLang: pip install --no-deps ."
        yield Line("FAIL", "plugin", f"no entry point {ENTRY_POINT!r} in {GROUP}", fix)
        return
    yield Line("ok", "plugin", f"{ENTRY_POINT} -> {entry_points[0].value}")
    if contract.installed_version() is not None and not contract.has_plugin_system():
        fix = "start the server with `python -m sglang_oea.launch_server`, or apply the patch"
        yield Line("warn", "plugin", "this SGLang has no plugin system to find it", fix)
    only = config.host_variable("SGLANG_PLUGINS")
    if only and ENTRY_POINT not in [name.strip() for name in only.split(",")]:
        fix = f"add {ENTRY_POINT} to SGLANG_PLUGINS, or unset it"
        yield Line("FAIL", "SGLANG_PLUGINS", f"{only} keeps the plugin out", fix)
    # SGLang skips every plugin whose distribution also offers a platform that is not selected
    selected = config.host_variable("SGLANG_PLATFORM")
    platforms = importlib.metadata.entry_points(group="sglang.srt.platforms")
    others = {e.dist.name for e in platforms if selected and e.name != selected and e.dist}
    if entry_points[0].dist is not None and entry_points[0].dist.name in others:
        fix = f"the distribution {entry_points[0].dist.name} must not offer a platform"
        yield Line("FAIL", "SGLANG_PLATFORM", f"{selected} keeps the plugin out", fix)


def settings() -> Iterator[Line]:
    """How the `SGLANG_OEA_*` variables of this shell parse."""
    try:
        parsed = config.from_environment()
    except config.Refusal as refusal:
        yield Line("FAIL", "settings", str(refusal))
        return
    if parsed is None:
        yield Line(
            "warn", "settings", "off", "set SGLANG_OEA_K0, for example to 4, and launch the server"
        )
        return
    yield Line(
        "ok",
        "settings",
        f"k0={parsed.k0.shown} modes={','.join(parsed.modes)} impl={parsed.impl} "
        f"max_rows={parsed.max_rows} max_rank={parsed.max_rank or 'N'} strict={int(parsed.strict)} "
        f"trace={parsed.trace or 'off'}",
    )


def contract_items() -> Iterator[Line]:
    """Each symbol of SGLang that is relied on."""
    if contract.installed_version() is None:
        return
    # what SGLang says of missing GPUs while it is imported is not about OEA
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for item in contract.items():
            problem = item.problem()
            if problem is None:
                yield Line("ok", "contract", f"{item.path} ({item.purpose})")
            elif not item.optional:
                yield Line("FAIL", "contract", problem, f"use sglang {contract.SUPPORTED}")
            else:
                yield Line("warn", "contract", problem, f"unavailable: {item.optional}")


def checkpoint(folder: Path) -> Iterator[Line]:
    """What a checkpoint's `config.json` says of its experts."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # multimodal checkpoints keep the language model's settings one level down
        described = {**described, **(described.get("text_config") or {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        fix = "give the folder that holds the checkpoint's config.json"
        yield Line("FAIL", "model", f"{folder}: {error}", fix)
        return
    name = (described.get("architectures") or ["unknown architecture"])[0]
    experts = _first(described, "n_routed_experts", "num_experts", "num_local_experts")
    slots = _first(described, "num_experts_per_tok", "moe_topk", "top_k_experts")
    if not experts or not slots:
        yield Line(
            "FAIL", "model", f"{name} is not a Mixture of Experts", "serve it without SGLANG_OEA_K0"
        )
        return
    gate = described.get("scoring_func") or described.get("topk_method") or "as its model code says"
    groups = described.get("n_group") or 1
    yield Line(
        "ok",
        "model",
        f"{name}: {experts} experts, top-{slots}, {described.get('n_shared_experts') or 0} shared, "
        f"gate {gate}, {groups} group(s)",
    )
    yield from _reroutable(name, described)
    yield _kernel(experts, slots, described)
    parsed = _parsed()
    if parsed is not None and isinstance(parsed.k0.shown, int) and parsed.k0.shown >= slots:
        fix = f"choose SGLANG_OEA_K0 below {slots}"
        yield Line("warn", "k0", f"{parsed.k0.shown} of top-{slots} is stock routing", fix)


def _reroutable(name: str, described: dict) -> Iterator[Line]:
    if described.get("num_hash_layers"):
        yield Line(
            "warn",
            "layers",
            f"the first {described['num_hash_layers']} MoE layers route by hash and stay stock",
        )
    if described.get("scoring_func") not in (None, "softmax", "sigmoid", "sqrtsoftplus"):
        fix = "only softmax, sigmoid and sqrtsoftplus gates are rerouted"
        yield Line("FAIL", "layers", f"{name} scores with {described['scoring_func']}", fix)
        return
    source = _model_source(name)
    if source is None:
        yield Line("warn", "layers", f"SGLang {contract.installed_version()} has no {name}")
    elif "custom_routing_function=" in source:
        fix = "layers that use it stay stock, and the server refuses to start if all do"
        yield Line("warn", "layers", f"SGLang's {name} can use a custom routing function", fix)
    else:
        yield Line("ok", "layers", "its gate can be rerouted; the server names layers that are not")


def _kernel(experts: int, slots: int, described: dict) -> Line:
    """Whether the Triton kernel takes such layers on CUDA, as far as a config can tell."""
    try:
        from sglang_oea.core import launch
        from sglang_oea.core.scores import Router
    except ImportError as error:
        return Line("warn", "kernel", f"not judged without torch and triton: {error}")
    groups, kept = described.get("n_group") or 1, described.get("topk_group") or 1
    scoring = described.get("scoring_func") or "softmax"
    biased = described.get("topk_method") == "noaux_tc"
    # a grouped router with a bias is sigmoid whatever the config says
    scoring = "sigmoid" if biased else scoring
    reason = launch.why_not(Router(scoring, slots, 0, True, groups, kept, biased), experts)
    if reason is None:
        return Line("ok", "kernel", "on CUDA one Triton launch a layer")
    return Line("warn", "kernel", f"plain torch instead of Triton: {reason}")


def _model_source(architecture: str) -> str | None:
    """The file of SGLang's models that defines an architecture, without importing it."""
    files = [file for file in importlib.metadata.files("sglang") or () if "models" in file.parts]
    for file in files:
        if file.suffix == ".py" and f"class {architecture}(" in (source := file.read_text()):
            return source
    return None


def _first(described: dict, *names: str) -> int | None:
    return next((described[name] for name in names if described.get(name)), None)


def _parsed() -> config.Config | None:
    try:
        return config.from_environment()
    except config.Refusal:
        return None
