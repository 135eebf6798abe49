"""`min_p`, the option beyond the paper: what it takes from a baseline, and what it never does."""

import pytest
import torch

from sglang_oea.core.routing import reroute

# two rows of five experts, top-3; the second expert of row 0 weighs half of its first
GATE = torch.tensor([[0.8, 0.4, 0.3, 0.1, 0.0], [0.0, 0.1, 0.6, 0.55, 0.5]])
IDS = torch.tensor([[0, 1, 2], [2, 3, 4]])


def run(k0, **options):
    """The rerouted ids; the router renormalises and has no bias."""
    weights = GATE.gather(1, IDS) / GATE.gather(1, IDS).sum(1, keepdim=True)
    return reroute(GATE, GATE, IDS, weights, k0, renormalize=True, **options)[1].tolist()


def test_light_experts_are_not_kept():
    """Holds the rule: expert 1 is below 0.6 x 0.8, so row 0 asks for expert 0 alone.

    The union is {0, 2, 3}; expert 1 is back where it only completes a row that found too few.
    """
    assert run(2) == [[0, 1, 2], [2, 3, 1]]
    assert run(2, min_p=0.6) == [[0, 2, 3], [2, 3, 0]]


def test_equal_weight_is_kept():
    """Holds the edge: as heavy as the limit is heavy enough."""
    assert run(2, min_p=0.5) == run(2)


def test_first_in_rank_is_always_kept():
    """Holds that with a bias, where the first in rank can be light, a row still keeps it."""
    choice = torch.tensor([[0.0, 9.0, 8.0, 1.0], [9.0, 8.0, 0.0, 1.0]])
    gate = torch.tensor([[0.1, 0.1, 0.9, 0.1], [0.9, 0.8, 0.1, 0.1]])
    ids = torch.tensor([[1, 2], [0, 1]])
    weights = gate.gather(1, ids)
    _, got = reroute(choice, gate, ids, weights, 1, renormalize=True, min_p=1.0)
    assert got[0, 0] == 1


def test_stock_rows_lend_all_that_they_execute():
    """Holds T = |union|: a row with `k0 >= K` runs its light experts, so others may take them."""
    k0 = torch.tensor([3, 1])
    assert run(k0, min_p=1.0) == [[0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize("min_p", [0.1, 0.5, 0.8, 1.0])
def test_t_never_rises_and_falls_with_min_p(min_p):
    """Holds what the option is for, on a batch where nothing has to be completed."""
    logits = torch.randn(16, 64, generator=torch.Generator().manual_seed(3))
    gate = logits.sigmoid()
    weights, ids = gate.topk(8)
    t = [
        len(reroute(gate, gate, ids, weights, 7, renormalize=True, min_p=p)[1].unique())
        for p in (None, min_p / 2, min_p)
    ]
    assert len(ids.unique()) >= t[0] >= t[1] >= t[2]
