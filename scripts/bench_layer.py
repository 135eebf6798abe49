#!/usr/bin/env python3
"""What the routing step costs beside the MoE layer that it serves, on this machine's CPU.

One MoE layer of a checkpoint, loaded by SGLang itself, is timed with stock routing and with OEA, in
turns; then the routing step alone. Prints one JSON line; exits 1 above the limit.

    python scripts/bench_layer.py --model DIR [--rows 16] [--k0 4] [--limit 0.05]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from serving import CPU_ENVIRONMENT

ROUNDS = 15


def main() -> int:
    """Load, time in turns, print; 1 if the routing step takes more than its share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--rows", type=int, default=16, help="tokens in the batch (default: 16)")
    parser.add_argument("--k0", type=int, default=4, help="default: 4")
    parser.add_argument("--limit", type=float, default=0.05, help="share (default: 0.05)")
    args = parser.parse_args()
    # before torch and sglang are imported, which read it once
    os.environ.update(CPU_ENVIRONMENT)

    import torch
    from in_process import load_runner
    from sglang.srt.layers.moe.topk import TopK
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_oea.core import config
    from sglang_oea.plugin import hooks

    host = hooks.attach(config.from_environment({"SGLANG_OEA_K0": str(args.k0)}))
    HookRegistry.apply_hooks()
    runner = load_runner(args.model)
    rerouter = host.session.rerouter
    layer = next(
        module
        for module in runner.model.modules()
        if any(isinstance(child, TopK) for child in module.children())
    )
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(args.rows, runner.model_config.hidden_size, generator=generator)
    hidden = hidden.to(runner.dtype)
    valid = torch.ones(args.rows, dtype=torch.bool)

    # what the step is given, kept for timing it alone
    given = {}
    reroute = rerouter.reroute_topk

    def keep(*inputs):
        given["inputs"] = inputs
        return reroute(*inputs)

    def run(open_rows: torch.Tensor | None) -> Callable[[], None]:
        def forward() -> None:
            rerouter.gate.open_rows = open_rows
            layer(hidden.clone())

        return forward

    with torch.inference_mode():
        rerouter.reroute_topk = keep
        run(valid)()
        rerouter.reroute_topk = reroute
        before = rerouter.report()
        times = interleaved(stock=run(None), oea=run(valid), step=lambda: reroute(*given["inputs"]))
        after = rerouter.report()
    calls = after["calls"] - before["calls"]
    share = times["step"] / times["stock"]
    print(
        json.dumps(
            {
                "model": args.model.name,
                "rows": args.rows,
                "k0": args.k0,
                "cores": os.cpu_count(),
                "stock_layer_ms": round(times["stock"] * 1e3, 3),
                "oea_layer_ms": round(times["oea"] * 1e3, 3),
                "routing_step_ms": round(times["step"] * 1e3, 3),
                "step_share_of_stock_layer": round(share, 4),
                "T_before": (after["experts_before"] - before["experts_before"]) / calls,
                "T_after": (after["experts_after"] - before["experts_after"]) / calls,
            }
        )
    )
    if share > args.limit:
        print(f"error: above {args.limit} of the stock layer's time", file=sys.stderr)
    return int(share > args.limit)


def interleaved(**variants: Callable[[], None]) -> dict[str, float]:
    """Median seconds of each variant, timed in turns so that a busy moment hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(ROUNDS + 2):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            # the first two rounds warm up
            if number >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
