"""Route a server's recorded calls again: `sglang-oea trace`.

`replay` computes from the recorded router logits what `core/reference.py` chooses, and compares
with what the server served. Where they agree, an evaluation that routes through the same function
measures what a server does.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_oea.core.reference import reroute_selection
from sglang_oea.core.stats import Stats

from .errors import LabError
from .trace import Trace, read

# of a weight; one unit of its dtype where that is coarser
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Replay:
    """How a replay compares with what was served.

    counters: of what was served, as `/server_info` counts
    wrong_ids: rows with other experts; wrong_weights: further rows with other weights
    first: the first such row, in words; None where all agree
    """

    counters: dict[str, int]
    wrong_ids: int
    wrong_weights: int
    first: str | None


def replay(trace: Trace) -> Replay:
    """Route every recorded call again: ids must be equal, weights within `TOLERANCE`.

    Raises:
        LabError: a shard is missing, cannot be read, or does not fit the manifest.
    """
    stats = Stats(1, "cpu")
    wrong_ids, wrong_weights, first = 0, 0, None
    for call in trace.calls():
        routed = slice(0, call.router.slots)
        before, after = call.stock_ids[:, routed], call.ids[:, routed]
        stats.add(0, before, after, call.valid, call.logits.shape[-1])
        weights, ids = reroute_selection(
            call.router,
            call.logits,
            call.bias,
            call.stock_ids,
            call.stock_weights,
            call.k0,
            call.valid,
            trace.max_rank,
        )
        # [rows]
        other_ids = (ids != call.ids).any(-1)
        other_weights = ~_close(weights, call.weights).all(-1) & ~other_ids
        wrong_ids += int(other_ids.sum())
        wrong_weights += int(other_weights.sum())
        if first is None and (other_ids | other_weights).any():
            row = int((other_ids | other_weights).int().argmax())
            served, replayed = (call.ids, ids) if other_ids[row] else (call.weights, weights)
            first = (
                f"step {call.step}, layer {call.layer_id}, row {row}: "
                f"served {served[row].tolist()}, replayed {replayed[row].tolist()}"
            )
    _, counters = stats.read()
    return Replay(counters, wrong_ids, wrong_weights, first)


def run(folder: str) -> int:
    """Print what a trace holds and whether its replay agrees: 0 if so, 1 if not, 2 for no trace."""
    try:
        trace = read(Path(folder))
        result = replay(trace)
    except LabError as error:
        print(f"sglang-oea trace: {error}", file=sys.stderr)
        return 2
    print(
        f"recorded: {len(trace.steps)} of {trace.steps_wanted} forwards, "
        f"{'complete' if trace.complete else 'not complete'}; sglang_oea {trace.version}, "
        f"k0={trace.k0} max_rank={trace.max_rank or 'N'} modes={','.join(trace.modes)} "
        f"impl={trace.impl}"
    )
    counters = result.counters
    print(
        f"served:   {counters['calls']} calls of {len(trace.routers)} MoE layers, "
        f"{counters['rows']} rows; T per call {_mean(counters, 'experts_before')} stock, "
        f"{_mean(counters, 'experts_after')} served"
    )
    if result.first is None:
        print(f"replay:   the same experts in every call, weights within {TOLERANCE:g}")
        return 0
    print(
        f"replay:   DIFFERS: {result.wrong_ids} rows with other experts, "
        f"{result.wrong_weights} with other weights\n          first: {result.first}"
    )
    return 1


def _mean(counters: dict[str, int], column: str) -> str:
    return f"{counters[column] / counters['calls']:.1f}" if counters["calls"] else "-"


def _close(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    relative = max(TOLERANCE, torch.finfo(right.dtype).eps)
    # rows that pass through untouched may hold NaN
    return torch.isclose(left, right, rtol=relative, atol=1e-9, equal_nan=True)
