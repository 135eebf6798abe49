"""The table: one line a policy and batch size, next to stock, or another policy, at that size."""

from collections.abc import Sequence
from dataclasses import dataclass

from .results import Row
from .statistics import interval

HEADER = (
    *("policy", "B", "parameters", "T", "T/stock", "cross-entropy", "difference"),
    *("95 % interval", "top-1 changed", "KL to stock"),
)


@dataclass(frozen=True)
class Figures:
    """What a row says once it is compared; nats per token.

    `difference` and its interval `low` to `high` are to the policy that it is compared with, which
    may be this one (`is_reference`); `ratio` and `divergence` are to stock.
    """

    policy: str
    batch: int
    parameters: str
    active: float
    ratio: float
    cross_entropy: float
    difference: float
    low: float
    high: float
    changed: float
    divergence: float
    is_reference: bool


def figures(rows: Sequence[Row], seed: int = 0, against: str = "stock") -> list[Figures]:
    """Compare every row with the one of a policy at its batch size; the batch sizes ascend."""
    stock = {row.batch: row for row in rows if row.policy == "stock"}
    other = {row.batch: row for row in rows if row.policy == against}
    ordered = sorted(rows, key=lambda row: row.batch)
    return [_compare(row, stock[row.batch], other[row.batch], seed) for row in ordered]


def _compare(row: Row, stock: Row, other: Row, seed: int) -> Figures:
    ours, theirs = row.per_token(row.nats), row.per_token(other.nats)
    name, _, parameters = row.policy.partition(":")
    active, active_of_stock = (sum(r.active) / len(r.active) for r in (row, stock))
    low, high = interval(ours - theirs, seed)
    return Figures(
        policy=name,
        batch=row.batch,
        parameters=parameters,
        active=active,
        ratio=active / active_of_stock,
        cross_entropy=ours.mean().item(),
        difference=(ours - theirs).mean().item(),
        low=low,
        high=high,
        changed=row.per_token(row.changed).mean().item(),
        divergence=row.per_token(row.divergence).mean().item(),
        is_reference=row is other,
    )


def table(compared: Sequence[Figures]) -> str:
    """Aligned text, names to the left, numbers to the right."""
    cells = [HEADER, *map(_cells, compared)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = []
    for line in cells:
        padded = [
            cell.ljust(width) if HEADER[column] in ("policy", "parameters") else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cells(f: Figures) -> tuple[str, ...]:
    numbers = (f"{f.active:.2f}", f"{f.ratio:.3f}", f"{f.cross_entropy:.4f}")
    if f.is_reference:
        return (f.policy, str(f.batch), f.parameters, *numbers, "", "", "", "")
    return (
        *(f.policy, str(f.batch), f.parameters, *numbers),
        *(f"{f.difference:+.4f}", f"{f.low:+.4f} .. {f.high:+.4f}"),
        *(f"{100 * f.changed:.2f} %", f"{f.divergence:.5f}"),
    )
