"""Properties of policies on whole routing problems, and OEA against the oracle."""

import oracle
import pytest
import torch
from cases import CI, cases
from hypothesis import given
from hypothesis import strategies as st

from sglang_oea.lab.policies import POLICIES, Batch, Policy
from sglang_oea.lab.policies.batch import active, members

# routers that chose exactly their best experts, in float32, for several batches at once
ROUTED = {
    "kind": "normal",
    "stock": "exact",
    "spoilt": "none",
    "padding": None,
    "logits_dtype": torch.float32,
    "weights_dtype": torch.float32,
    "ids_dtype": torch.int64,
    "k0_kind": "int",
    "batches": 2,
}


def batch_of(case, seed=0):
    """The lab's view of a case, with similarities drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(case.choice.shape[-1], case.choice.shape[-1], generator=generator)
    alike = (noise + noise.mT) / 2
    alike.fill_diagonal_(1.0)
    scores = (case.choice, case.gate, case.ids, case.weights)
    return Batch(*scores, case.renormalize, similarity=alike)


@st.composite
def policies(draw):
    """Any policy with any parameters that fit any model."""
    name = draw(st.sampled_from(sorted(POLICIES)))
    few = st.integers(1, 12)
    specs = {
        "stock": "stock",
        "pruned": f"pruned:k0={draw(few)}",
        "oea": f"oea:k0={draw(few)},max_rank={draw(few)}",
        "paper": f"paper:k0=1,p={draw(st.sampled_from([0.1, 0.5, 1]))},max_rank={draw(few)}",
        "lynx": f"lynx:budget={draw(few)}",
        "xshare": f"xshare:budget={draw(few)}",
        "sere": f"sere:top={draw(few)},rho={draw(st.sampled_from([0, 0.5, 0.9]))}",
        "lonely": f"lonely:k0={draw(few)},ratio={draw(st.sampled_from([0, 0.5, 2]))}",
        "demand": f"demand:keep={draw(few)},share={draw(st.sampled_from([0.1, 0.5, 1]))}",
        "min_p": f"min_p:p={draw(st.sampled_from([0.1, 0.8, 1]))}",
        "by_layer": f"by_layer:k0s={draw(few)}",
        "soft": f"soft:k0={draw(few)},weight={draw(st.sampled_from([0.5, 1, 2]))}",
    }
    assert specs.keys() == POLICIES.keys()
    return Policy.parse(specs[name])


@CI
@given(cases(**ROUTED), policies())
def test_contract(case, policy):
    """Holds what the seam relies on: distinct experts that the row may choose, finite weights."""
    batch = batch_of(case)
    weights, ids = policy(batch)
    assert ids.shape == weights.shape and ids.shape[:-1] == batch.ids.shape[:-1]
    assert ids.min() >= -1 and ids.max() < batch.experts
    assert torch.equal(members(ids, batch.experts).sum(-1), (ids >= 0).sum(-1))
    assert weights.isfinite().all() and not weights[ids < 0].any()
    # SERE looks at no row's own scores when it replaces
    if policy.name != "sere":
        assert not (batch.choice == -torch.inf)[members(ids, batch.experts)].any()


@CI
@given(cases(**ROUTED), policies())
def test_t_does_not_rise(case, policy):
    """Holds that no policy activates more than stock, or more than its budget."""
    batch = batch_of(case)
    distinct = active(policy(batch).ids, batch.experts)
    if policy.name in ("lynx", "xshare"):
        assert (distinct <= dict(policy.parameters)["budget"]).all()
    if policy.name != "xshare":
        assert (distinct <= active(batch.ids, batch.experts)).all()


@CI
@given(cases(**ROUTED), policies())
def test_batches_are_independent(case, policy):
    """Holds that a position's routing is of its own rows: all at once equals one after another."""
    weights, ids = policy(batch_of(case))
    for number, part in enumerate(case.parts()):
        alone = batch_of(part)
        alone = Batch(
            *(t[None] for t in (alone.choice, alone.gate, alone.ids, alone.weights)),
            alone.renormalize,
            similarity=alone.similarity,
        )
        alone_weights, alone_ids = policy(alone)
        assert torch.equal(ids[number], alone_ids[0])
        assert torch.equal(weights[number], alone_weights[0])


@CI
@given(cases(**ROUTED))
def test_oea_is_the_oracle(case):
    """Holds that the lab's OEA is the algorithm that servers are tested against."""
    k0 = max(1, case.k0)
    limit = f",max_rank={case.max_rank}" if case.max_rank else ""
    weights, ids = Policy.parse(f"oea:k0={k0}{limit}")(batch_of(case))
    for number, part in enumerate(case.parts()):
        rows = len(part.ids)
        expected_weights, expected_ids = oracle.reroute(
            *(t.tolist() for t in (part.choice, part.gate, part.ids, part.weights)),
            [k0] * rows,
            renormalize=case.renormalize,
            valid=[True] * rows,
            max_rank=case.max_rank,
        )
        assert ids[number].tolist() == expected_ids
        torch.testing.assert_close(weights[number], torch.tensor(expected_weights))


@CI
@given(cases(**ROUTED, max_rank=False))
def test_paper_is_oea_but_for_completion(case):
    """Holds that with p = 1, kmax = K and maxP = N only rows that find fewer than K differ."""
    batch = batch_of(case)
    k0 = min(max(1, case.k0), batch.slots)
    weights, ids = Policy.parse(f"paper:k0={k0}")(batch)
    oea_weights, oea_ids = Policy.parse(f"oea:k0={k0}")(batch)
    full = (ids >= 0).all(-1)
    ours, theirs = (torch.zeros_like(batch.gate) for _ in range(2))
    ours.scatter_(-1, ids.clamp(min=0), weights)
    theirs.scatter_(-1, oea_ids, oea_weights)
    torch.testing.assert_close(ours[full], theirs[full], rtol=1e-4, atol=1e-6)
    # and none is added
    added = members(ids, batch.experts) & ~members(oea_ids, batch.experts)
    assert not added.any()


def test_empty_slots_are_not_counted():
    """Holds that -1 is no expert: T counts what is loaded."""
    ids = torch.tensor([[[3, -1], [3, 1]], [[-1, -1], [-1, -1]]])
    assert active(ids, 4).tolist() == [2, 0]
    assert members(ids, 4)[0].tolist() == [[False, False, False, True], [False, True, False, True]]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_say_their_source(name):
    """Holds that each file names what it implements."""
    import sys

    source = sys.modules[POLICIES[name].__module__].__doc__
    assert name == "stock" or "arXiv" in source
