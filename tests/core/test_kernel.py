"""The kernel against the reference, in Triton's interpreter: ids and counters exactly.

Where two choice scores differ by less than a scoring function rounds, either order is right. So the
reference is given the scores of the kernel's own formula, which is held to `scores.py` by a
tolerance, and then there is one right order.
"""

import pytest
import torch
import triton
import triton.language as tl
from cases import CI, cases
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sglang_oea.core import kernel, launch, scores
from sglang_oea.core.routing import reroute
from sglang_oea.core.stats import COLUMNS, Stats

EXPERTS = [8, 60, 64, 128, 160, 256, 288, 384, 512]
FAMILIES = {
    "anything": {},
    "softmax": {"scoring": "softmax", "biased": False, "spoilt": "none"},
    "sigmoid_with_bias": {"scoring": "sigmoid", "biased": True, "spoilt": "none"},
    "sqrtsoftplus": {"scoring": "sqrtsoftplus", "spoilt": "none"},
    "groups": {"num_expert_group": 8, "experts": 64, "scoring": "sigmoid"},
    "ties": {"kind": "quantised", "stock": "exact"},
    "all_equal": {"kind": "equal"},
    "underflow": {"kind": "underflow", "spoilt": "none"},
    "padding": {"padding": "anywhere", "garbage": True},
    "spoilt_rows": {"spoilt": "both"},
    # rows that are not sound, first among them: a few examples must show what they may not do
    "spoilt_rows_that_would_lend": {
        **{"spoilt": "both", "padding": "anywhere", "garbage": False, "num_expert_group": 1},
        **{"experts": 64, "slots": 4, "k0": 2, "k0_kind": "int", "max_rank": False},
    },
    # two groups of eight a row, and a union of all rows' groups
    "groups_that_differ": {
        **{"num_expert_group": 8, "topk_group": 2, "experts": 64, "kind": "normal"},
        **{"scoring": "sigmoid", "slots": 6, "k0": 2, "k0_kind": "int", "spoilt": "none"},
    },
    "service_levels": {"k0_kind": "row"},
    "few_ranks": {"max_rank": True, "kind": "normal"},
    "many_rows": {"padding": "anywhere", "garbage": True, "experts": 64, "num_expert_group": 1},
}
# rows: examples a family; a case of 64 rows takes the interpreter seconds
EXAMPLES = {1: 4, 2: 3, 7: 2, 11: 8, 16: 1, 33: 1, 64: 1}
POINTED = ("spoilt_rows_that_would_lend", "groups_that_differ")
RUNS = [(family, rows) for family in FAMILIES for rows in (1, 2, 7, 16)]
RUNS += [(family, 11) for family in POINTED] + [("many_rows", 33), ("many_rows", 64)]
SENTINEL = -77


@triton.jit
def _scores_out(x_ptr, out_ptr, SCORING: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, kernel._gate_score(tl.load(x_ptr + lane), SCORING))


def kernel_scores(case) -> tuple[torch.Tensor, torch.Tensor]:
    """`[rows, N]` choice and gate scores by the kernel's formula; softmax ranks before dividing."""
    x = case.logits.float()
    softmax = case.router.scoring == "softmax"
    if softmax:
        x = x - x.max(-1, keepdim=True).values
    block = triton.next_power_of_2(x.numel())
    flat = torch.zeros(block).index_put((torch.arange(x.numel()),), x.flatten())
    out = torch.empty(block)
    _scores_out[(1,)](flat, out, scores.SCORING_FUNCTIONS.index(case.router.scoring), block)
    gate = out[: x.numel()].view_as(x)
    choice = gate if case.bias is None else gate + case.bias.float()
    router = case.router
    if router.num_expert_group > 1:
        best = 2 if router.biased else 1
        choice = scores._limit_to_groups(choice, router.num_expert_group, router.topk_group, best)
    return choice, gate / gate.sum(-1, keepdim=True) if softmax else gate


def run(case, monkeypatch):
    """The kernel's weights, ids, counters and scratch; outputs are poisoned before."""
    rows, experts = case.logits.shape
    by_row = isinstance(case.k0, torch.Tensor) and case.k0.dim() == 1
    k0 = case.k0 if by_row else torch.full((rows + 1,), int(case.k0), dtype=torch.int32)
    valid = torch.ones(rows, dtype=torch.bool) if case.valid is None else case.valid
    counters = torch.arange(len(COLUMNS))
    scratch = launch.new_scratch(1, launch.MAX_EXPERTS, "cpu")[0]
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(SENTINEL))
    try:
        weights, ids = launch.reroute(
            case.logits,
            case.bias,
            case.ids,
            case.weights,
            valid,
            k0,
            counters,
            scratch,
            case.router,
            case.max_rank,
            by_row,
        )
    finally:
        monkeypatch.undo()
    return weights, ids, counters - torch.arange(len(COLUMNS)), scratch, valid


@pytest.mark.parametrize(("family", "rows"), RUNS)
def test_kernel_equals_the_reference(family, rows):
    """Ids and counters exactly, weights to 1e-6; scratch is left as it was found."""
    monkeypatch = pytest.MonkeyPatch()
    structure = {"experts": st.sampled_from(EXPERTS)} | FAMILIES[family]
    pinned = {k: v for k, v in structure.items() if not isinstance(v, st.SearchStrategy)}

    # no shrinking: in the interpreter it would take minutes
    @settings(CI, max_examples=EXAMPLES[rows], phases=[Phase.generate])
    @given(data=st.data())
    def check(data):
        drawn = {k: data.draw(v, label=k) for k, v in structure.items() if k not in pinned}
        case = data.draw(cases(rows=rows, batches=None, **pinned, **drawn))
        if launch.why_not(case.router, case.logits.shape[1]) is not None:
            return
        choice, gate = kernel_scores(case)
        want_weights, want_ids = reroute(
            choice,
            gate,
            case.ids,
            case.weights,
            case.k0,
            renormalize=case.renormalize,
            valid=case.valid,
            max_rank=case.max_rank,
        )
        weights, ids, counters, scratch, valid = run(case, monkeypatch)

        assert (weights.dtype, ids.dtype) == (case.weights.dtype, case.ids.dtype)
        assert ids.tolist() == want_ids.tolist()
        # one unit in the last place of bfloat16 is 2**-8
        close = 1e-6 if weights.dtype == torch.float32 else 2**-7
        torch.testing.assert_close(
            weights.float(), want_weights.float(), rtol=close, atol=1e-12, equal_nan=True
        )
        reference = Stats(1, torch.device("cpu"))
        reference.add(0, case.ids, want_ids, valid, case.logits.shape[1])
        assert counters.tolist() == reference.counters[0].tolist()
        assert not scratch.any()

    check()


@settings(CI, max_examples=60)
@given(data=st.data())
def test_the_kernels_formula_is_that_of_the_scores(data):
    """Each scoring function, softmax after its division: to two units of float32."""
    case = data.draw(
        cases(rows=4, batches=None, biased=False, num_expert_group=1, spoilt="none", garbage=False)
    )
    _, gate = kernel_scores(case)
    _, want = scores.from_logits(case.logits, case.router.scoring)
    # torch flushes what softmax leaves below the smallest normal number
    torch.testing.assert_close(gate, want, rtol=1e-6, atol=1e-37)


def test_shared_columns_and_strides(monkeypatch):
    """Shared experts' columns come back as they were, from tensors whose elements lie apart."""
    torch.manual_seed(0)
    rows, experts, slots = 7, 64, 8
    logits = torch.randn(experts, rows).T
    router = scores.Router("sigmoid", slots, 1, True, 1, 1, False)
    choice, gate = scores.from_logits(logits, "sigmoid")
    routed = choice.topk(slots).indices
    wide = torch.full((rows, 2 * slots + 2), experts)
    wide[:, : 2 * slots : 2] = routed
    ids = wide[:, ::2]
    weights = torch.cat([gate.gather(1, routed), torch.full((rows, 1), 0.4)], 1)
    valid = torch.tensor([True, False] * rows)[:rows]
    counters = torch.zeros(len(COLUMNS), dtype=torch.int64)
    scratch = launch.new_scratch(1, experts, "cpu")[0]
    k0 = torch.full((2 * rows + 2,), 2, dtype=torch.int32)[::2]

    got_weights, got_ids = launch.reroute(
        logits, None, ids, weights, valid, k0, counters, scratch, router
    )

    want_weights, want_ids = reroute(
        choice, gate, ids[:, :slots], weights[:, :slots], 2, renormalize=True, valid=valid
    )
    assert torch.equal(got_ids[:, :slots], want_ids)
    torch.testing.assert_close(got_weights[:, :slots], want_weights, rtol=1e-6, atol=1e-12)
    assert torch.equal(got_ids[:, slots], ids[:, slots])
    assert torch.equal(got_weights[:, slots], weights[:, slots])


def test_no_rows():
    """An empty batch launches nothing."""
    router = scores.Router("sigmoid", 2, 0, True, 1, 1, False)
    weights, ids = launch.reroute(
        torch.zeros(0, 8),
        None,
        torch.zeros(0, 2, dtype=torch.int32),
        torch.zeros(0, 2),
        torch.zeros(0, dtype=torch.bool),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(len(COLUMNS), dtype=torch.int64),
        launch.new_scratch(1, 8, "cpu")[0],
        router,
    )
    assert weights.shape == ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("router", "experts", "named"),
    [
        (scores.Router("softmax", 8, 0, True, 1, 1, True), 64, "bias"),
        (scores.Router("sigmoid", 8, 0, True, 4, 2, True), 160, "power of two"),
        (scores.Router("sigmoid", 8, 0, True, 1, 1, True), 2048, "experts"),
        (scores.Router("sigmoid", 40, 0, True, 1, 1, True), 256, "slots"),
    ],
)
def test_what_the_kernel_does_not_take_is_named(router, experts, named):
    """Those layers take the reference, and `/server_info` says why."""
    assert named in launch.why_not(router, experts)
    assert launch.why_not(scores.Router("sigmoid", 8, 1, True, 1, 1, True), 256) is None
