"""`from_logits` against the oracle's scores: formulas, group limits, extreme logits."""

import math

import oracle
import pytest
import torch
from cases import CI
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_oea.core.scores import from_logits

SCORING = ("softmax", "sigmoid", "sqrtsoftplus")


@st.composite
def routers(draw):
    """(logits `[rows, N]`, bias `[N]` or None, num_expert_group, topk_group)."""
    groups = draw(st.sampled_from([1, 2, 4, 8]))
    experts = groups * draw(st.integers(1, 32))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    logits = torch.randn(draw(st.integers(1, 16)), experts, generator=generator)
    logits = logits * draw(st.sampled_from([1.0, 8.0, 0.0]))
    if draw(st.booleans()):
        # equal scores, within groups and among them
        logits = logits.round()
    logits = logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])))
    bias = torch.randn(experts, generator=generator).round() if draw(st.booleans()) else None
    return logits, bias, groups, draw(st.integers(1, groups))


@pytest.mark.parametrize("scoring", SCORING)
@settings(CI, max_examples=300)
@given(router=routers())
def test_scores_equal_the_oracle(scoring, router):
    """Holds the formulas, that the bias stays out of the gate scores, and the groups with ties."""
    logits, bias, groups, topk_group = router
    choice, gate = from_logits(
        logits, scoring, correction_bias=bias, num_expert_group=groups, topk_group=topk_group
    )
    assert choice.dtype == gate.dtype == torch.float32
    want = [oracle.gate_scores(row, scoring) for row in logits.tolist()]
    # below 1e-7 softmax cannot do better: float32 rounds `logit - max` itself
    torch.testing.assert_close(gate.double(), torch.tensor(want).double(), rtol=1e-6, atol=1e-12)

    # from the float32 gate scores, so that near-ties fall alike: exact, -inf included
    bias = None if bias is None else bias.tolist()
    rows = gate.tolist()
    want = [oracle.choice_scores(row, bias, groups, topk_group) for row in rows]
    assert choice.tolist() == want


@pytest.mark.parametrize("scoring", SCORING)
def test_group_limit_keeps_the_best_groups(scoring):
    """Holds by hand: without a bias one strong expert makes a group, with one its best two do."""
    # groups of two: one strong expert, two good ones, two weak ones
    logits = torch.tensor([[3.0, -9.0, 2.0, 2.0, -9.0, -9.0]])
    limit = {"num_expert_group": 3, "topk_group": 1}
    choice, _ = from_logits(logits, scoring, **limit)
    assert choice.isfinite().tolist() == [[True, True, False, False, False, False]]
    # softmax makes a lone strong expert outweigh two good ones, the others saturate
    choice, _ = from_logits(logits, scoring, correction_bias=torch.zeros(6), **limit)
    strong = scoring == "softmax"
    assert choice.isfinite().tolist() == [[strong, strong, not strong, not strong, False, False]]


@pytest.mark.parametrize("scoring", SCORING)
@pytest.mark.parametrize("bias", [None, torch.zeros(8)])
def test_equal_groups_go_to_the_lower(scoring, bias):
    """Holds that ties among groups are settled by number, never by a sort's whim."""
    choice, _ = from_logits(
        torch.zeros(1, 8), scoring, correction_bias=bias, num_expert_group=4, topk_group=2
    )
    assert choice.isfinite().tolist() == [[True] * 4 + [False] * 4]


@pytest.mark.parametrize("scoring", SCORING)
def test_extreme_logits(scoring):
    """Holds that huge logits neither overflow nor turn to NaN, in the float32 range."""
    logits = torch.tensor([[3e38, 0.0], [1e4, 1e4 - 1], [-1e4, -1e4], [-90.0, -70.0]])
    _, gate = from_logits(logits, scoring)
    assert gate.isfinite().all()
    want = torch.tensor([oracle.gate_scores(row, scoring) for row in logits.tolist()])
    # denormals carry few digits, so an absolute part
    torch.testing.assert_close(gate, want, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("scoring", ("sigmoid", "sqrtsoftplus"))
def test_infinite_logits_and_nan_stay_with_their_expert(scoring):
    """Holds that one broken logit breaks no other expert of the row."""
    _, gate = from_logits(torch.tensor([[-math.inf, math.nan, 0.0, 20.0]]), scoring)
    want = oracle.gate_scores([0.0, 20.0], scoring)
    assert gate[0, 0] == 0 and gate[0, 1].isnan()
    torch.testing.assert_close(gate[0, 2:], torch.tensor(want), rtol=1e-6, atol=0)


def test_nan_spoils_a_whole_softmax_row_and_no_other():
    """Holds that a NaN logit reaches the choice scores, where rerouting looks for it."""
    choice, _ = from_logits(torch.tensor([[math.nan, 0.0], [0.0, 0.0]]), "softmax")
    assert choice.isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("groups", [2, 4])
def test_nan_is_not_hidden_by_a_group_limit(groups):
    """Holds invariant 10 under group limits: a NaN expert is never masked out of sight."""
    for expert in range(8):
        logits = torch.zeros(1, 8)
        logits[0, expert] = math.nan
        choice, _ = from_logits(logits, "sigmoid", num_expert_group=groups, topk_group=1)
        assert choice.isnan().any()


def test_leading_batches_score_alike():
    """Holds `[G, rows, N]`: an offline evaluation scores many steps at once."""
    logits = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    settings = {"correction_bias": torch.ones(8), "num_expert_group": 4, "topk_group": 2}
    whole = from_logits(logits, "sigmoid", **settings)
    for g in range(3):
        part = from_logits(logits[g], "sigmoid", **settings)
        # not bit for bit: a vectorised operator rounds its last few elements differently
        for got, want in zip(whole, part, strict=True):
            torch.testing.assert_close(got[g], want)


def test_bad_input_is_refused():
    """Holds that an unknown router says what was expected and what came."""
    logits = torch.zeros(1, 8)
    with pytest.raises(ValueError, match="scoring: expected .*softmax.*, got 'tanh'"):
        from_logits(logits, "tanh")
    with pytest.raises(ValueError, match="num_expert_group: 3 groups do not divide 8 experts"):
        from_logits(logits, "sigmoid", num_expert_group=3)
