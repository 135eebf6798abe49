"""Intervals, figures, the table and the plots, on rows whose numbers are known."""

import dataclasses

import pytest
import torch

from sglang_oea.lab import plot
from sglang_oea.lab.errors import LabError
from sglang_oea.lab.report import figures, table
from sglang_oea.lab.results import Row, Setting
from sglang_oea.lab.statistics import interval

SETTING = Setting("demo", "held_out.jsonl", "float32", 5, "abc", "def")
ZEROS = [0.0, 0.0]
STOCK = Row(SETTING, "stock", 2, [4.0, 6.0], [8.0, 4.0], ZEROS, [0, 0], 1.0)
# a loss of .25 a token on both sequences; KL .5 and 0; 1 of 8 tokens changed
OEA = Row(SETTING, "oea:k0=4,max_rank=9", 2, [3.0, 4.0], [9.0, 5.0], [2.0, 0.0], [1, 0], 1.0)


def test_interval_of_equal_differences():
    """Holds that where all sequences lose the same, nothing is uncertain."""
    low, high = interval(torch.full((7,), 0.25))
    assert low == pytest.approx(0.25) and high == pytest.approx(0.25)


def test_interval_of_a_coin():
    """Holds the interval to the binomial distribution, which the mean of ones and zeros has.

    Of 100 draws with p = .5, 95 % lie between 40 and 60 successes.
    """
    coin = torch.tensor([0.0, 1.0] * 50)
    low, high = interval(coin)
    assert low == pytest.approx(0.40, abs=0.011) and high == pytest.approx(0.60, abs=0.011)
    assert interval(coin) == (low, high)


def test_figures():
    """Holds every figure of the table to its definition."""
    stock, ours = figures([STOCK, OEA])
    assert (stock.ratio, stock.difference, stock.cross_entropy) == (1.0, 0.0, 1.5)
    assert (ours.policy, ours.parameters) == ("oea", "k0=4,max_rank=9")
    assert (ours.active, ours.ratio) == (3.5, 0.7)
    assert (ours.cross_entropy, ours.difference) == (1.75, 0.25)
    assert ours.low == pytest.approx(0.25) and ours.high == pytest.approx(0.25)
    assert (ours.changed, ours.divergence) == (0.125, 0.25)


def test_figures_are_paired_and_per_batch_size():
    """Holds that a row is compared with stock at its own batch size, sequence by sequence."""
    stock_of_4 = dataclasses.replace(STOCK, batch=4, nats=[4.0, 8.0])
    of_4 = dataclasses.replace(OEA, batch=4, nats=[4.0, 12.0])
    found = figures([of_4, OEA, STOCK, stock_of_4])
    assert [f.batch for f in found] == [2, 2, 4, 4]
    ours = next(f for f in found if f.batch == 4 and f.policy == "oea")
    # differences of 0 and 1 a token
    assert ours.difference == 0.5 and (ours.low, ours.high) == (0.0, 1.0)


def test_figures_against_another_policy():
    """Holds that differences are to that policy, and that T / stock stays what it says."""
    better = dataclasses.replace(OEA, policy="pruned:k0=4", nats=[8.0, 5.0])
    stock, ours, pruned = figures([STOCK, OEA, better], against="oea:k0=4,max_rank=9")
    assert (ours.difference, ours.low, ours.high, ours.ratio) == (0, 0, 0, 0.7)
    assert (pruned.difference, pruned.low, pruned.high) == (-0.125, -0.25, 0.0)
    assert (stock.difference, stock.ratio) == (-0.25, 1.0)


def test_table():
    """Holds that the table shows each figure in its column, stock without comparisons."""
    text = table(figures([STOCK, OEA]))
    header, stock, ours = text.splitlines()
    for column in ("policy", "B", "parameters", "T", "T/stock", "cross-entropy", "KL to stock"):
        assert column in header
    assert stock.split() == ["stock", "2", "5.00", "1.000", "1.5000"]
    cells = ["oea", "2", "k0=4,max_rank=9", "3.50", "0.700", "1.7500", "+0.2500"]
    # one that turns out like the reference is compared all the same
    alike = dataclasses.replace(STOCK, policy="sere:top=3,rho=1.0")
    assert "+0.0000 .. +0.0000" in table(figures([STOCK, alike])).splitlines()[-1]
    assert ours.split() == [*cells, "+0.2500", "..", "+0.2500", "12.50", "%", "0.25000"]
    assert header.index("T/stock") + len("T/stock") == ours.index("0.700") + len("0.700")


def drawn(rows):
    """The axes of one batch size."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    plot.draw(axes, figures(rows))
    return axes


def test_plot_series():
    """Holds that a series is one policy over its first parameter, own last, points by T."""
    k0_2 = dataclasses.replace(OEA, policy="oea:k0=2", active=[1.0, 2.0], nats=[9.5, 5.5])
    k0_4 = dataclasses.replace(OEA, policy="oea:k0=4")
    tried = dataclasses.replace(OEA, policy="mine:x=1")
    axes = drawn([k0_4, STOCK, OEA, tried, k0_2])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["stock", "mine", "oea", "oea max_rank=9"]
    line = next(c for c in axes.containers if c.get_label() == "oea").lines[0]
    assert line.get_xdata().tolist() == [1.5, 3.5]
    assert line.get_ydata().tolist() == [1.875, 1.75]
    assert axes.get_xlabel().startswith("T") and "nats" in axes.get_ylabel()


def test_plots_are_written(tmp_path):
    """Holds that there is one picture a batch size, with a title that says what it shows."""
    rows = [STOCK, OEA, *(dataclasses.replace(row, batch=4) for row in (STOCK, OEA))]
    files = plot.pareto(tmp_path / "new", figures(rows), SETTING.label, OEA.tokens)
    assert [file.name for file in files] == ["pareto-B2.png", "pareto-B4.png"]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(tmp_path, monkeypatch):
    """Holds that a missing matplotlib is said with the command that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(LabError, match=r"pip install 'sglang-oea\[plot\]'"):
        plot.pareto(tmp_path, figures([STOCK]), "demo", 8)


def test_every_policy_has_its_look():
    """Holds that two policies never look alike, and that none is drawn as one being tried out."""
    from sglang_oea.lab.policies import POLICIES

    assert set(plot.LOOKS) == set(POLICIES)
    assert len(set(plot.LOOKS.values())) == len(plot.LOOKS)
