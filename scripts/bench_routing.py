#!/usr/bin/env python3
"""Microseconds a layer of the routing step, inside a CUDA graph of 75 layers' launches.

Per number of rows: an empty kernel, SGLang's own one-launch router, the reference in torch, and the
kernel; then what a rerouted layer gains, with the expert GEMMs timed as a function of T. Inputs
differ by layer and by graph, and are together larger than the L2 cache. The kernel is compared with
the reference on every input before anything is timed. Without a GPU only the reference is timed, on
the CPU. Appends JSON lines to OUT.jsonl and draws OUT.png (with matplotlib installed).

    python scripts/bench_routing.py --out FOLDER/NAME [--experts 256] [--slots 8] [--seed 0]
"""

import argparse
import functools
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

from sglang_oea import __version__
from sglang_oea.core import launch
from sglang_oea.core.routing import reroute
from sglang_oea.core.scores import Router, from_logits
from sglang_oea.core.stats import Stats

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
LAYERS, K0, REPEATS = 75, 4, 20
# model -> experts, hidden, expert intermediate size on one GPU
EXPERT_SHAPES = {"Qwen3-30B-A3B": (128, 2048, 768), "GLM-5, TP=8": (256, 6144, 256)}


@triton.jit
def _empty(pointer, N: tl.constexpr):
    if N < 0:
        tl.store(pointer, 0)


class Layer:
    """One layer's inputs, and each variant of its routing step on them."""

    def __init__(self, rows: int, router: Router, experts: int, device: str, seed: int):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(rows, experts, generator=generator) + torch.randn(experts)
        self.logits = logits.bfloat16().to(device)
        self.bias = (torch.randn(experts, generator=generator) * 0.1).to(device)
        self.router, self.experts = router, experts
        choice, gate = self.scores()
        self.ids = choice.topk(router.slots, sorted=False).indices.int()
        self.weights = gate.gather(-1, self.ids.long())
        self.valid = torch.ones(rows, dtype=torch.bool, device=device)
        self.table = torch.full((rows + 1,), K0, dtype=torch.int32, device=device)
        self.k0 = self.table[:1]
        self.stats = Stats(1, torch.device(device))
        self.scratch = launch.new_scratch(1, experts, device)[0]

    def scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Choice and gate scores, `[rows, N]`."""
        return from_logits(self.logits, self.router.scoring, correction_bias=self.bias)

    def empty(self) -> None:
        """A launch that does nothing."""
        _empty[(self.ids.shape[0],)](self.ids, 0)

    def stock(self) -> None:
        """SGLang's own router, which OEA runs after."""
        from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate

        moe_fused_gate(self.logits, self.bias, self.router.slots, scoring_func="sigmoid")

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Plain torch, counters included."""
        choice, gate = self.scores()
        weights, ids = reroute(
            choice, gate, self.ids, self.weights, self.k0, renormalize=True, valid=self.valid
        )
        self.stats.add(0, self.ids, ids, self.valid, self.experts)
        return weights, ids

    def kernel(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One launch, counters included."""
        return launch.reroute(
            self.logits,
            self.bias,
            self.ids,
            self.weights,
            self.valid,
            self.table,
            self.stats.counters[0],
            self.scratch,
            self.router,
        )


def main() -> None:
    """Check, time, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="stem of the .jsonl and .png")
    parser.add_argument("--experts", type=int, default=256, help="N (default: 256)")
    parser.add_argument("--slots", type=int, default=8, help="K (default: 8)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU: only the reference is timed, on the CPU", flush=True)
    router = Router("sigmoid", args.slots, 0, True, 1, 1, True)
    lines = []
    for rows in ROWS:
        line = environment(device, args) | {"rows": rows} | routing(rows, router, device, args)
        print(json.dumps(line), flush=True)
        lines.append(line)
    if device == "cuda":
        step = next(line["kernel_us"] for line in lines if line["rows"] == 16)
        for model, shape in EXPERT_SHAPES.items():
            line = environment(device, args) | {"model": model} | expert_gemms(*shape)
            line |= gain(line["slope_us"], line["intercept_us"], step)
            print(json.dumps(line), flush=True)
            lines.append(line)
    with open(args.out.with_suffix(".jsonl"), "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    draw(lines, args.out.with_suffix(".png"))


def environment(device: str, args: argparse.Namespace) -> dict:
    """What a figure was measured with."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    ).stdout.strip()
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    return {
        "device": name,
        "cuda": torch.version.cuda if device == "cuda" else None,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "sglang_oea": __version__,
        "commit": commit,
        "seed": args.seed,
        "experts": args.experts,
        "slots": args.slots,
        "k0": K0,
    }


def routing(rows: int, router: Router, device: str, args: argparse.Namespace) -> dict:
    """Microseconds a layer of each variant at one number of rows."""
    make = functools.partial(Layer, rows, router, args.experts, device)
    if device == "cpu":
        layers = [make(args.seed + number) for number in range(8)]
        return {"reference_us": clock_cpu(layers)}
    a_set = rows * args.experts * 2 * LAYERS
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(32, 1 + 2 * cache // a_set)
    graphs_of = [
        [make(args.seed + number * LAYERS + layer) for layer in range(LAYERS)]
        for number in range(sets)
    ]
    differ = sum(wrong_rows(layer) for layers in graphs_of for layer in layers)
    total = rows * LAYERS * sets
    # bf16 logits and a float32 bias leave near-ties, where either order is right
    if differ > 1e-3 * total:
        raise SystemExit(f"error: {differ} of {total} rows differ from the reference; not timed")
    if not graph_follows(make(args.seed), make(args.seed + 1)):
        raise SystemExit("error: a replayed graph does not follow its inputs; not timed")
    measured = {"input_sets": sets, "rows_that_differ": differ}
    for variant in ("empty", "stock", "reference", "kernel"):
        try:
            measured[f"{variant}_us"] = clock_graphs(graphs_of, variant)
        except ImportError as error:
            measured[f"{variant}_us"] = None
            print(f"{variant}: not timed, {error}", flush=True)
    return measured


def wrong_rows(layer: Layer) -> int:
    """Rows whose experts the kernel chooses otherwise than the reference."""
    _, want = layer.reference()
    _, got = layer.kernel()
    return int((want != got).any(-1).sum())


def graph_follows(layer: Layer, other: Layer) -> bool:
    """Whether a captured launch sees logits, validity and k0 that change in place afterwards."""
    layer.kernel()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weights, ids = layer.kernel()
    for name in ("logits", "bias", "ids", "weights"):
        getattr(layer, name).copy_(getattr(other, name))
    layer.valid[::3] = False
    layer.table.fill_(K0 - 1)
    graph.replay()
    want_weights, want_ids = layer.reference()
    return torch.equal(ids, want_ids) and torch.allclose(weights, want_weights, rtol=1e-5)


def clock_cpu(layers: list[Layer]) -> float:
    """Median microseconds of the reference, over the layers in turn."""
    seconds = []
    for _ in range(REPEATS):
        for layer in layers:
            start = time.perf_counter()
            layer.reference()
            seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds) * 1e6, 1)


def clock_graphs(graphs_of: list[list[Layer]], variant: str) -> float:
    """Median microseconds a layer; each graph holds its own layers' launches."""
    graphs = []
    for layers in graphs_of:
        for layer in layers[:3]:
            getattr(layer, variant)()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in layers:
                getattr(layer, variant)()
        graphs.append(graph)

    def replay() -> None:
        for graph in graphs:
            graph.replay()

    return round(clock(replay) / (LAYERS * len(graphs)), 3)


def clock(action: Callable[[], None]) -> float:
    """Median microseconds of an action on the GPU."""
    for _ in range(3):
        action()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def expert_gemms(experts: int, hidden: int, intermediate: int, rows: int = 16) -> dict:
    """Microseconds of a layer's two grouped GEMMs in bf16, by the number of active experts T.

    `rows * 8` slots are spread evenly over T experts; `slope_us` is the cost of one more expert.
    """
    up = torch.randn(experts, hidden, 2 * intermediate, device="cuda", dtype=torch.bfloat16)
    down = torch.randn(experts, intermediate, hidden, device="cuda", dtype=torch.bfloat16)
    slots = rows * 8
    x = torch.randn(slots, hidden, device="cuda", dtype=torch.bfloat16)
    times = {}
    for active in (t for t in (8, 16, 24, 32, 48, 64, 96, 128) if t <= min(experts, slots)):
        held = torch.zeros(experts, dtype=torch.int32, device="cuda")
        held[torch.randperm(experts, device="cuda")[:active]] = slots // active
        held[held.nonzero()[0]] += slots % active
        ends = held.cumsum(0).int()

        def layer(ends: torch.Tensor = ends) -> None:
            both = torch._grouped_mm(x, up, offs=ends)
            gate, value = both.chunk(2, dim=-1)
            torch._grouped_mm(torch.nn.functional.silu(gate) * value, down, offs=ends)

        times[active] = round(clock(layer), 2)
    slope, intercept = statistics.linear_regression(list(times), list(times.values()))
    return {
        "gemm_rows": rows,
        "gemm_us_by_T": times,
        "slope_us": round(slope, 3),
        "intercept_us": round(intercept, 2),
    }


def gain(slope: float, intercept: float, step: float) -> dict:
    """A layer's microseconds at the paper's T (table 4: Qwen3-30B, B=16, vanilla and k0=3).

    The paper's own ratio is 0.61 (table 3), which does not say whether it holds the routing step.
    """
    stock, oea = (intercept + slope * active for active in (48.8, 25.1))
    return {
        "stock_layer_us": round(stock, 2),
        "oea_layer_with_step_us": round(oea + step, 2),
        "ratio": round((oea + step) / stock, 3),
    }


def draw(lines: list[dict], path: Path) -> None:
    """One curve a variant, over rows; needs matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: install matplotlib (pip install 'sglang-oea[plot]')")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measured = [line for line in lines if "rows" in line]
    figure, axes = plt.subplots(figsize=(7, 4.5))
    colours = {"empty": "0.6", "stock": "#4477aa", "reference": "#ccbb44", "kernel": "#aa3377"}
    for variant, colour in colours.items():
        points = [(m["rows"], m[f"{variant}_us"]) for m in measured if m.get(f"{variant}_us")]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=variant)
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="microseconds a layer")
    axes.set_xticks(ROWS, labels=map(str, ROWS))
    first = measured[0]
    axes.set_title(f"routing step, N={first['experts']} K={first['slots']}, {first['device']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"drew {path}")


if __name__ == "__main__":
    main()
