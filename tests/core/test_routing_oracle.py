"""`reroute` against the oracle of python lists: ids exactly, weights to a tolerance."""

import oracle
import pytest
import torch
from cases import CI, FAMILIES, cases
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("family", FAMILIES)
@settings(CI, max_examples=200)
@given(data=st.data())
def test_reroute_equals_the_oracle(family, data):
    """Holds every rule at once, for every kind of router, padding, k0 and batch."""
    case = data.draw(cases(**FAMILIES[family]))
    weights, ids = case.run()
    assert (weights.dtype, ids.dtype) == (case.weights.dtype, case.ids.dtype)
    assert weights.shape == ids.shape == case.ids.shape

    # one batch `[rows, K]` after the other
    weights, ids = (out.unflatten(0, (1, -1)) if out.dim() == 2 else out for out in (weights, ids))
    for part, got_weights, got_ids in zip(case.parts(), weights, ids, strict=True):
        want_weights, want_ids = oracle.reroute(
            part.choice.tolist(),
            part.gate.tolist(),
            part.ids.tolist(),
            part.weights.tolist(),
            part.k0.tolist(),
            renormalize=part.renormalize,
            valid=part.valid.tolist(),
            max_rank=part.max_rank,
        )
        assert got_ids.tolist() == want_ids
        _assert_close(got_weights, torch.tensor(want_weights, dtype=torch.float64))


def _assert_close(got, want):
    """float32 to 1e-6, relatively; bfloat16, after rounding, to one unit in the last place."""
    if got.dtype == torch.bfloat16:
        want = want.bfloat16()
        one_ulp = (got.view(torch.int16).int() - want.view(torch.int16).int()).abs() <= 1
        assert (one_ulp | (got.isnan() & want.isnan())).all()
    else:
        # weights of 512 experts can be far below 1e-6, so the absolute part is there for denormals
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-12, equal_nan=True)
