"""Policies on one batch that can be followed by hand: three rows, six experts, two slots.

The rows, best expert first (gate and choice scores are equal, each row's sum is 1):
    row 0: expert 0 .40, 1 .30, 2 .15, 3 .08, 4 .05, 5 .02
    row 1: expert 2 .35, 0 .25, 3 .20, 1 .10, 5 .06, 4 .04
    row 2: expert 4 .30, 5 .28, 0 .22, 1 .12, 2 .05, 3 .03
Stock keeps 0 1, 2 0 and 4 5: T is 5. The columns of row 1 are not in rank order.
"""

import dataclasses

import pytest
import torch

from sglang_oea.lab.policies import Batch, Policy, PolicyError
from sglang_oea.lab.policies.batch import active

GATE = torch.tensor(
    [
        [0.40, 0.30, 0.15, 0.08, 0.05, 0.02],
        [0.25, 0.10, 0.35, 0.20, 0.04, 0.06],
        [0.22, 0.12, 0.05, 0.03, 0.30, 0.28],
    ]
)
IDS = torch.tensor([[0, 1], [0, 2], [4, 5]])
# experts 1 and 0 are alike, 1 and 2 less so; nothing is much like 5
ALIKE = torch.eye(6)
for one, other, similarity in ((0, 1, 0.9), (1, 2, 0.6), (5, 0, 0.3), (5, 2, 0.4), (5, 4, 0.2)):
    ALIKE[one, other] = ALIKE[other, one] = similarity


def batch(**changes):
    """The batch above, of a renormalising router."""
    weights = GATE.gather(-1, IDS)
    weights = weights / weights.sum(-1, keepdim=True)
    whole = Batch(GATE[None], GATE[None], IDS[None], weights[None], True, similarity=ALIKE)
    return dataclasses.replace(whole, **changes)


def route(spec, of=None):
    """`[{expert: weight}]` of each row, and T."""
    selection = Policy.parse(spec)(of or batch())
    rows = [
        {e: w for e, w in zip(ids, weights, strict=True) if e >= 0}
        for ids, weights in zip(
            selection.ids[0].tolist(), selection.weights[0].tolist(), strict=True
        )
    ]
    # an empty slot weighs nothing, and no expert is there twice
    assert not selection.weights[selection.ids < 0].any()
    assert [len(row) for row in rows] == (selection.ids[0] >= 0).sum(-1).tolist()
    return rows, active(selection.ids, 6).item()


BY_HAND = {
    "stock": ([{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}], 5),
    "pruned:k0=1": ([{0: 1}, {2: 1}, {4: 1}], 3),
    # more than K is K
    "pruned:k0=9": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}],
        5,
    ),
    # the union is 0 2 4: row 0 piggybacks on 2, row 1 on 0, row 2 on 0
    "oea:k0=1": ([{0: 40 / 55, 2: 15 / 55}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 52, 0: 22 / 52}], 3),
    # over the first two ranks row 0 and row 2 find nothing, and are completed: stock again
    "oea:k0=1,max_rank=2": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}],
        5,
    ),
    # the paper does not complete them
    "paper:k0=1,max_rank=2": ([{0: 1}, {2: 35 / 60, 0: 25 / 60}, {4: 1}], 3),
    "paper:k0=1,max_rank=3": (
        [{0: 40 / 55, 2: 15 / 55}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 52, 0: 22 / 52}],
        3,
    ),
    # row 0 reaches .38 with one expert, the others with two: the union is 0 2 4 5
    "paper:k0=2,p=0.38": (
        [{0: 40 / 55, 2: 15 / 55}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}],
        4,
    ),
    # one expert more than K, all from the union 0 2 4
    "paper:k0=1,kmax=3": (
        [
            {0: 40 / 60, 2: 15 / 60, 4: 5 / 60},
            {2: 35 / 64, 0: 25 / 64, 4: 4 / 64},
            {4: 30 / 57, 0: 22 / 57, 2: 5 / 57},
        ],
        3,
    ),
    # fewer than K
    "paper:k0=1,kmax=1": ([{0: 1}, {2: 1}, {4: 1}], 3),
    # 0 is wanted twice; then 2 (.35), and of 1 and 4 (.30 each) the lower id
    "lynx:budget=3": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {0: 22 / 34, 1: 12 / 34}],
        3,
    ),
    # a budget below K costs slots
    "lynx:budget=1": ([{0: 1}, {0: 1}, {0: 1}], 1),
    # nothing to drop
    "lynx:budget=5": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}],
        5,
    ),
    # sums of the columns: 0 .87, 2 .55, 1 .52, 4 .39, 5 .36, 3 .31
    "xshare:budget=2": (
        [{0: 40 / 55, 2: 15 / 55}, {2: 35 / 60, 0: 25 / 60}, {0: 22 / 27, 2: 5 / 27}],
        2,
    ),
    "xshare:budget=3": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {0: 22 / 34, 1: 12 / 34}],
        3,
    ),
    # kept are 0 2 4. 1 becomes 0, which row 0 has already; 5 is not enough like any
    "sere:top=1,rho=0.5": ([{0: 1}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}], 4),
    # 5 becomes 2 at 5's weight
    "sere:top=1,rho=0.4": ([{0: 1}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 2: 28 / 58}], 3),
    "sere:top=2,rho=0.0": (
        [{0: 40 / 70, 1: 30 / 70}, {2: 35 / 60, 0: 25 / 60}, {4: 30 / 58, 5: 28 / 58}],
        5,
    ),
}


@pytest.mark.parametrize("spec", BY_HAND)
def test_by_hand(spec):
    """Holds every policy to what its source says, read as its docstring says."""
    rows, distinct = route(spec)
    expected, expected_distinct = BY_HAND[spec]
    assert rows == [pytest.approx(row, abs=1e-6) for row in expected]
    assert distinct == expected_distinct


@pytest.mark.parametrize("renormalize", [True, False])
def test_weights_keep_the_row_s_scale(renormalize):
    """Holds that routed_scaling_factor stays, and that plain weights stay gate scores."""
    raw = GATE.gather(-1, IDS)
    weights = 2.5 * (raw / raw.sum(-1, keepdim=True) if renormalize else raw)
    scaled = batch(weights=weights[None], renormalize=renormalize)
    for spec in ("pruned:k0=1", "oea:k0=1", "paper:k0=1", "lynx:budget=3", "xshare:budget=3"):
        for row, gate in zip(route(spec, scaled)[0], GATE.tolist(), strict=True):
            total = sum(gate[e] for e in row) if renormalize else 1
            assert row == pytest.approx({e: 2.5 * gate[e] / total for e in row})


def test_choice_ranks_and_gate_weighs():
    """Holds that a correction bias decides who is chosen and never what it weighs."""
    # expert 3 is promoted to every row's best
    choice = GATE + torch.tensor([0, 0, 0, 1.0, 0, 0])
    ids = torch.tensor([[3, 0], [3, 2], [3, 4]])
    biased = batch(choice=choice[None], ids=ids[None])
    rows, distinct = route("xshare:budget=6", biased)
    assert distinct == 4 and rows[0] == pytest.approx({3: 8 / 48, 0: 40 / 48})
    # the greedy sum is of gate scores (0 2), the rank within it of choice scores
    assert [set(row) for row in route("xshare:budget=2", biased)[0]] == [{0, 2}] * 3
    assert [set(row) for row in route("pruned:k0=1", biased)[0]] == [{3}, {3}, {3}]


STOCK_OF_ROW_1 = {2: 35 / 60, 0: 25 / 60}
TRIED = {
    # 1 and 5 are asked for once, and not first; row 2 finds 0, at .22 of .28, row 0 only 2
    "lonely:k0=2,ratio=0.6": ([{0: 4 / 7, 1: 3 / 7}, STOCK_OF_ROW_1, {4: 30 / 52, 0: 22 / 52}], 4),
    # the firsts 0 2 4, and 5, whose only row gives it 28 of 58; 1 has 30 of 70
    "demand:keep=1,share=0.45": (
        [{0: 40 / 55, 2: 15 / 55}, STOCK_OF_ROW_1, {4: 30 / 58, 5: 28 / 58}],
        4,
    ),
    "by_layer:k0s=1": ([{0: 40 / 55, 2: 15 / 55}, STOCK_OF_ROW_1, {4: 30 / 52, 0: 22 / 52}], 3),
    # 2 is foreign to row 0, 0 to row 2
    "soft:k0=1,weight=0.5": (
        [{0: 40 / 47.5, 2: 7.5 / 47.5}, STOCK_OF_ROW_1, {4: 30 / 41, 0: 11 / 41}],
        3,
    ),
    # 1 is at 30 of 40 and 0 at 25 of 35, too light; 5 at 28 of 30 too
    "min_p:p=0.95": ([{0: 40 / 55, 2: 15 / 55}, STOCK_OF_ROW_1, {4: 30 / 52, 0: 22 / 52}], 3),
}


@pytest.mark.parametrize("spec", TRIED)
def test_ideas_by_hand(spec):
    """Holds what is read from lab/README.md: each idea on the batch above, weights to 1e-6."""
    rows, distinct = TRIED[spec]
    got, t = route(spec)
    assert t == distinct
    assert [row == pytest.approx(want, rel=1e-6) for row, want in zip(got, rows, strict=True)] == [
        True
    ] * 3


@pytest.mark.parametrize("spec", ["paper:k0=1,kmax=6", "lynx:budget=6", "xshare:budget=6"])
def test_excluded_experts_are_never_chosen(spec):
    """Holds that an expert outside a row's groups does not fill a slot; the slot stays empty."""
    choice = GATE.clone()
    # row 0 may choose 0 and 1 only, row 2 all but 0
    choice[0, 2:] = choice[2, 0] = -torch.inf
    rows, _ = route(spec, batch(choice=choice[None]))
    assert set(rows[0]) <= {0, 1} and 0 not in rows[2]


def test_lynx_counts_rows_before_mass():
    """Holds that two rows which want an expert a little outweigh one that wants another a lot."""
    gate = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9], [0.8, 0.1, 0.1]])
    ids = torch.tensor([[0], [1], [1]])
    few = batch(choice=gate[None], gate=gate[None], ids=ids[None], weights=torch.ones(1, 3, 1))
    assert [set(row) for row in route("lynx:budget=1", few)[0]] == [{1}, {1}, {1}]


def test_xshare_does_not_count_excluded_rows():
    """Holds that a row adds no mass to an expert that it may not choose."""
    choice = GATE.clone()
    # without row 0's .40 expert 0 has .47 and 2 has .55, the most
    choice[0, 0] = -torch.inf
    ids = torch.tensor([[1, 2], [0, 2], [4, 5]])
    rows, _ = route("xshare:budget=1", batch(choice=choice[None], ids=ids[None]))
    assert [set(row) for row in rows] == [{2}, {2}, {2}]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("pruned:k0=0", "k0: expected at least 1, got 0"),
        ("oea:k0=0", "k0: expected at least 1, got 0"),
        ("oea:k0=1,max_rank=0", "max_rank: expected at least 1, got 0"),
        ("paper:k0=3", "k0: expected 1 to kmax=2"),
        ("paper:k0=1,kmax=7", "kmax: expected at most N=6, got 7"),
        ("paper:k0=1,p=0", "p: expected above 0, at most 1, got 0.0"),
        ("lynx:budget=0", "budget: expected at least 1, got 0"),
        ("xshare:budget=0", "budget: expected at least 1, got 0"),
        ("sere:top=0,rho=0", "top: expected at least 1, got 0"),
        ("min_p:p=0", "p: expected above 0, at most 1, got 0.0"),
        ("lonely:k0=0,ratio=1", "k0: expected at least 1, got 0"),
        ("demand:keep=0,share=1", "keep: expected at least 1, got 0"),
        ("by_layer:k0s=4-4", "k0s: expected 1 numbers from 1 on"),
        ("soft:k0=1,weight=-1", "weight: expected at least 0, got -1.0"),
    ],
)
def test_parameters_that_do_not_fit(spec, said):
    """Holds that a parameter out of range is refused by name."""
    with pytest.raises(PolicyError, match=said):
        Policy.parse(spec)(batch())
