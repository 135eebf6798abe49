"""Cross-entropy over T, one picture a batch size: who loses least at how many experts."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import LabError
from .report import Figures

OWN = "oea"
# one look a policy on every plot; the colours are Okabe and Ito's, which colour-blind people can
# tell apart
LOOKS = {
    "stock": ("black", "*"),
    "pruned": ("#E69F00", "v"),
    "paper": ("#56B4E9", "P"),
    "lynx": ("#CC79A7", "s"),
    "xshare": ("#009E73", "D"),
    "sere": ("#D55E00", "X"),
    "lonely": ("#999999", "<"),
    "demand": ("#999999", ">"),
    "min_p": ("#999999", "h"),
    "by_layer": ("#999999", "^"),
    "soft": ("#999999", "d"),
    OWN: ("#0072B2", "o"),
}
# for policies that are being tried out
OTHER_MARKERS = "<>^hpd8"
# several series of one policy
LINES = ("-", "--", "-.", ":")


def refuse_without_matplotlib() -> None:
    """Say before anything is measured that there will be no plot.

    Raises:
        LabError: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise LabError(
            "matplotlib is missing",
            where="--plot",
            got=error,
            expected="matplotlib 3.8 or later",
            fix="pip install 'sglang-oea[plot]', or leave --plot out: the table needs none",
        ) from None


def pareto(folder: Path, compared: Sequence[Figures], label: str, tokens: int) -> list[Path]:
    """Write `pareto-B<batch>.png` for every batch size; returns the files."""
    refuse_without_matplotlib()
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for batch in sorted({f.batch for f in compared}):
        # no pyplot: it would look for a display
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        draw(axes, [f for f in compared if f.batch == batch])
        axes.set_title(f"{label}, B={batch}, {tokens:,} tokens")
        files.append(folder / f"pareto-B{batch}.png")
        figure.savefig(files[-1], dpi=130)
    return files


def draw(axes: Any, compared: Sequence[Figures]) -> None:
    """Draw the rows of one batch size; own series last, so that they lie on top.

    A series is a policy over its first parameter, all others equal.
    """
    series: dict[tuple[str, str], list[Figures]] = {}
    for f in compared:
        fixed = f.parameters.partition(",")[2]
        series.setdefault((f.policy, fixed), []).append(f)
    drawn: Counter[str] = Counter()
    others = itertools.cycle(OTHER_MARKERS)
    for (name, fixed), points in sorted(series.items(), key=_own_last):
        points.sort(key=lambda f: f.active)
        color, marker = LOOKS.get(name) or ("#666666", next(others))
        # the interval is of the difference to stock, so a bar says how sure the distance is
        below = [max(0.0, f.difference - f.low) for f in points]
        above = [max(0.0, f.high - f.difference) for f in points]
        axes.errorbar(
            [f.active for f in points],
            [f.cross_entropy for f in points],
            yerr=None if name == "stock" else [below, above],
            label=f"{name} {fixed}".strip(),
            color=color,
            marker=marker,
            markersize=12 if name == "stock" else 6,
            linestyle=LINES[drawn[name] % len(LINES)],
            linewidth=2 if name == OWN else 1,
            capsize=2,
        )
        drawn[name] += 1
        if name == "stock":
            axes.axhline(points[0].cross_entropy, color=color, linewidth=0.8, linestyle=":")
    axes.set_xlabel("T: distinct experts a layer and step, mean")
    axes.set_ylabel("cross-entropy, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()


def _own_last(item: tuple[tuple[str, str], Any]) -> tuple[bool, bool]:
    name = item[0][0]
    return name == OWN, name != "stock"
