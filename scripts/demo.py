#!/usr/bin/env python3
"""Serve a small Mixture of Experts with stock SGLang and show what OEA does to it.

One server is switched between off and on, in turns, under the same load; a second one without OEA
shows that "off" costs nothing. SGLang's own benchmark sends the requests. Exits 1 if OEA did not
run. `demo.sh` prepares the environment; until `main` has parsed, this is standard library only.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from serving import Server, ServerError

# trained on technical texts: what it answers reads like them
MODEL = Path(__file__).resolve().parents[1] / "sglang_oea" / "demo"
TOP_K = 8
# a small pool of KV slots and no prefix cache, so that every round prefills and decodes alike
FLAGS = ("--mem-fraction-static=0.5", "--max-total-tokens=16384", "--disable-radix-cache")
# openings as in the texts that the model was trained on
OPENINGS = """If the file does not exist; The function returns; A transaction is
The following command; To install the package; The name of the branch
This option is used to; When the server starts; The first argument is
A regular expression matches; By default, the value of; The table has
Each module has; An error is raised if; The maintainer of a package
In order to restore"""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line; everything that is wrong with it is one line and exit 2."""

    def at_least(low: int) -> Callable[[str], int]:
        def number(text: str) -> int:
            if not text.isdigit() or int(text) < low:
                raise argparse.ArgumentTypeError(
                    f"expected a whole number from {low} on, got {text}"
                )
            return int(text)

        return number

    parser = argparse.ArgumentParser(
        prog="demo.sh", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--port", type=at_least(1), help="default: a free one")
    parser.add_argument("--k0", type=at_least(1), default=4, help=f"below {TOP_K} (default: 4)")
    parser.add_argument("--requests", type=at_least(1), default=16, help="at once (default: 16)")
    parser.add_argument("--tokens", type=at_least(1), default=96, help="an answer (default: 96)")
    parser.add_argument("--rounds", type=at_least(3), default=3, help="a setting (default: 3)")
    parser.add_argument(
        "--random",
        action="store_true",
        help="serve a larger model with random weights: its text means nothing, and a greater part "
        "of its steps is spent in experts",
    )
    parser.add_argument("--cache", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.k0 >= TOP_K:
        parser.error(f"--k0 {args.k0} of top-{TOP_K} is stock routing; expected 1 to {TOP_K - 1}")
    if args.port is not None:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", args.port))
            except (OSError, OverflowError) as error:
                parser.error(f"port {args.port} of 127.0.0.1 cannot be used ({error}); try another")
    return args


def main(argv: list[str] | None = None) -> int:
    """Make the model, serve it twice, print the table and the proof."""
    args = parse(argv)
    if args.check:
        return 0
    # a terminated demo must stop its server as an interrupted one does
    for ended in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ended, lambda number, _: sys.exit(128 + number))
    try:
        return run(args)
    except KeyboardInterrupt:
        print("interrupted; the server is stopped", file=sys.stderr)
        return 130
    except (ServerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace) -> int:
    """The demo itself."""
    import torch

    on_cpu = not torch.cuda.is_available()
    model = make_model(args.cache) if args.random else MODEL
    load = Load(args, model)
    say(f"{args.requests} requests at once, {args.tokens} tokens each, on {machine(on_cpu)}")

    def serve(name: str, settings: dict[str, str]) -> Server:
        return Server(
            model,
            log=args.cache / "logs" / f"demo-{name}.log",
            settings=settings,
            flags=FLAGS,
            cpu=on_cpu,
            port=args.port,
        )

    rounds: dict[str, list[Round]] = {"off": [], "on": []}
    with serve("oea", {"SGLANG_OEA_K0": str(args.k0)}) as server:
        ready(server, f"SGLANG_OEA_K0={args.k0}")
        load.round(server)
        for number in range(args.rounds):
            for name, k0 in (("off", 0), ("on", args.k0)):
                server.set_k0(k0)
                rounds[name].append(load.round(server))
                say(f"round {number + 1}, k0={k0}: {rounds[name][-1]}")
        proof = server.oea()
        written = {}
        for k0 in (0, args.k0):
            server.set_k0(k0)
            written[k0] = load.answers(server)
    with serve("stock", {}) as server:
        ready(server, "no SGLANG_OEA_K0")
        load.round(server)
        rounds["stock"] = [load.round(server) for _ in range(args.rounds)]
    show(load.prompts, written)
    return report(args, rounds, proof)


class Round(NamedTuple):
    """One round: output tokens a second, and T where the server counts it."""

    speed: float
    active: float | None

    def __str__(self) -> str:
        counted = f", T {self.active:.1f}" if self.active else ""
        return f"{self.speed:.1f} tokens/s{counted}"


class Load:
    """SGLang's serving benchmark (`sglang.benchmark.serving`), all requests at once."""

    def __init__(self, args: argparse.Namespace, model: Path):
        self.requests = args.requests
        self.folder = args.cache / "demo"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results, prompts = self.folder / "rounds.jsonl", self.folder / "prompts.jsonl"
        openings = OPENINGS.replace("\n", "; ").split("; ")
        self.prompts = [openings[n % len(openings)] for n in range(args.requests)]
        with open(prompts, "w", encoding="utf-8") as file:
            for prompt in self.prompts:
                turns = [{"content": prompt}, {"content": "and so on"}]
                file.write(json.dumps({"conversations": turns}) + "\n")
        self.arguments = [
            *("--backend=sglang", "--dataset-name=custom", f"--dataset-path={prompts}"),
            *(f"--model={model}", f"--tokenizer={model}", f"--output-file={self.results}"),
            *(f"--num-prompts={args.requests}", f"--max-concurrency={args.requests}"),
            *(f"--sharegpt-output-len={args.tokens}", "--warmup-requests=0", "--disable-tqdm"),
        ]

    def round(self, server: Server) -> Round:
        """Send every prompt once and wait for the answers."""
        from sglang.benchmark import serving

        before = server.oea()
        self.results.unlink(missing_ok=True)
        with open(self.folder / "benchmark.log", "a") as log, contextlib.redirect_stdout(log):
            sys.argv = ["serving", f"--base-url={server.url}", *self.arguments]
            serving.cli_main()
        result = json.loads(self.results.read_text())
        if result["completed"] != self.requests:
            raise ServerError(f"{result['completed']} of {self.requests} requests were answered")
        after = server.oea()
        calls = after.get("calls", 0) - before.get("calls", 0)
        active = after.get("experts_after", 0) - before.get("experts_after", 0)
        return Round(result["output_throughput"], active / calls if calls else None)

    def answers(self, server: Server) -> list[str]:
        """What the server writes after each prompt, all at once, the likeliest token each time."""
        # the penalty keeps a small model from saying one thing for ever
        sampling = {"temperature": 0, "frequency_penalty": 0.5, "max_new_tokens": 32}
        body = {"text": self.prompts, "sampling_params": sampling}
        return [answer["text"] for answer in server.post("/generate", body)]


def show(prompts: Sequence[str], written: dict[int, list[str]]) -> None:
    """Print the first answers, by k0."""
    print(f"\nwhat {len(prompts)} requests at once are answered; k0=0 is stock routing:")
    for number, prompt in enumerate(prompts[:3]):
        for k0, answers in written.items():
            print(f"  k0={k0}  {prompt} | {' '.join(answers[number].split())}")


def report(args: argparse.Namespace, rounds: dict[str, list[Round]], proof: dict) -> int:
    """Print the table and the proof; 1 if OEA did not run."""
    speed = {
        name: statistics.median(r.speed for r in measured) for name, measured in rounds.items()
    }
    active = {name: statistics.median(r.active or 0 for r in rounds[name]) for name in rounds}
    print(f"\n{'server':<28}{'T per layer':>12}{'output tokens/s':>17}{'ratio':>8}")
    for name, label in (
        ("off", "OEA server, k0=0 (off)"),
        ("on", f"OEA server, k0={args.k0}"),
        ("stock", "server without OEA"),
    ):
        counted = f"{active[name]:.1f}" if active[name] else "not counted"
        ratio = speed[name] / speed["off"]
        print(f"{label:<28}{counted:>12}{speed[name]:>17.1f}{ratio:>8.2f}")
    print(f"\n(medians of {args.rounds} rounds; T: distinct experts that a layer activates)")
    print(f"proof, internal_states[0].oea of /server_info: {json.dumps(proof)}")
    layers = proof.get("layers", {"moe": 0, "rerouted": 0})
    if not layers["rerouted"] or not proof["slots_rerouted"]:
        print("error: OEA did not run: nothing was rerouted", file=sys.stderr)
        return 1
    if layers["rerouted"] != layers["moe"] or active["on"] >= active["off"]:
        print("error: OEA did not run on every layer, or T did not fall", file=sys.stderr)
        return 1
    return 0


def make_model(cache: Path) -> Path:
    """The model of `--random`, made once."""
    from make_demo_model import cached

    with contextlib.redirect_stdout(sys.stderr):
        return cached("glm4-moe", "demo", cache)


def machine(on_cpu: bool) -> str:
    """What the figures were measured on."""
    if not on_cpu:
        import torch

        return torch.cuda.get_device_name()
    return f"the CPU ({os.cpu_count()} cores)"


def ready(server: Server, what: str) -> None:
    """Wait for a server, showing that something happens."""
    start = time.monotonic()
    say(f"starting SGLang with {what} (log: {server.log})")
    ticks = iter(range(10**6))
    server.wait_ready(
        lambda: next(ticks) % 10 == 9 and say(f"  ... {time.monotonic() - start:.0f} s")
    )


def say(text: str) -> None:
    """Progress, apart from the result on standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
