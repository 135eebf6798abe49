"""The preflight: `preflight_glm5.sh` runs this folder with the Python that will serve."""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

# run as a folder, Python looks for modules in it, not beside it
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from preflight import gpus, host, launch, links, memory, model, software
from preflight.arguments import for_launcher, parse
from preflight.probe import Unanswered
from preflight.report import Line, guarded, show, show_json


def main(argv: list[str] | None = None) -> int:
    """Judge this machine; the process's exit status."""
    args = parse(sys.argv[1:] if argv is None else argv)
    # so that the launcher asks the Python that runs here
    os.environ.setdefault("PYTHON", sys.executable)
    return (show_json if args.json else show)(report(args))


def report(args: argparse.Namespace) -> Iterator[Line]:
    """Every finding: the machine, the software, the checkpoint."""
    cards = []
    try:
        cards = gpus.found()
    except gpus.Unreadable as error:
        fix = "no GPU of the recipe answers so; look at this one with nvidia-smi -q and in dmesg"
        yield Line("FAIL", "GPUs", str(error), fix)
    except Unanswered as error:
        fix = "install NVIDIA's driver (570 or later); in a container, hand the GPUs in"
        yield Line("FAIL", "GPUs", str(error), fix)
    release = software.installed("sglang")
    asked = launch.ask(for_launcher(args), release)
    yield from machine(args, cards, release)
    yield from guarded("transformers", software.transformers)
    yield from guarded("sglang", software.sglang)
    yield from guarded("launcher", partial(launch.accepted, asked))
    yield from weights(args, cards, asked, release)


def machine(args: argparse.Namespace, cards: list[gpus.Gpu], release: str | None) -> Iterator[Line]:
    """The GPUs, how they are joined, and what the operating system grants."""
    numbers = software.numbers(release or "")
    if cards:
        yield from guarded("GPUs", partial(gpus.number_and_kind, cards, os.environ))
        yield from guarded("driver", partial(gpus.driver, cards))
    yield from guarded("peer-to-peer", partial(links.peer_to_peer, os.environ))
    yield from guarded("NCCL level", partial(links.nccl_level, os.environ))
    yield from guarded("NUMA", partial(links.numa, args.root))
    yield from guarded("IOMMU", partial(links.iommu, args.root))
    yield from guarded("limits", partial(host.limits, args.root))
    yield from guarded("environment", partial(host.environment, os.environ, numbers))
    yield from guarded("port", partial(host.port, args.host, args.port))


def weights(
    args: argparse.Namespace, cards: list[gpus.Gpu], asked: launch.Launch, release: str | None
) -> Iterator[Line]:
    """The checkpoint, the room for it, and whether OEA can run on it."""
    name = args.model or asked.flags.get("--model-path")
    folder = model.locate(name, os.environ) if name else None
    checkpoint = model.read(folder)
    if name:
        yield from guarded("checkpoint", partial(model.described, name, folder, args.mtp))
    if checkpoint:
        yield from guarded("shards", partial(model.complete, checkpoint))
    if checkpoint and release:
        fused = partial(launch.shared_experts, checkpoint, asked, software.numbers(release))
        yield from guarded("shared experts", fused)
    cache = model.hub(os.environ)
    yield from guarded("disk", partial(model.disk, folder, checkpoint, cache))
    yield from guarded("memory", partial(room, args, cards, checkpoint, asked.flags))
    yield from guarded("OEA", partial(software.contract, folder, args.k0, args.mtp))


def room(
    args: argparse.Namespace,
    cards: list[gpus.Gpu],
    checkpoint: model.Checkpoint | None,
    flags: dict[str, str],
) -> Iterator[Line]:
    """Memory of the GPUs against the need, with the launcher's own settings."""
    return memory.enough(
        cards,
        checkpoint,
        context=args.context,
        max_running=args.max_running or int(flags.get("--max-running-requests", 64)),
        mtp=args.mtp,
        fraction=float(flags.get("--mem-fraction-static", memory.STATIC_FRACTION)),
    )


if __name__ == "__main__":
    sys.exit(main())
