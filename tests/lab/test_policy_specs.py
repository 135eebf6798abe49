"""Specs of policies: what parses, what is refused and how, and the default set."""

import pytest
import torch

from sglang_oea.lab.errors import LabError
from sglang_oea.lab.policies import POLICIES, TRIED, Batch, Policy, default_specs


@pytest.mark.parametrize(
    ("spec", "spelled"),
    [
        ("stock", "stock"),
        ("oea:k0=4", "oea:k0=4"),
        ("oea:max_rank=8,k0=04", "oea:k0=4,max_rank=8"),
        ("paper:k0=4,p=1.0", "paper:k0=4"),
        ("paper:k0=4,p=0.50,kmax=9", "paper:k0=4,p=0.5,kmax=9"),
        ("sere:top=2,rho=1", "sere:top=2,rho=1.0"),
    ],
)
def test_one_spelling(spec, spelled):
    """Holds that one policy has one name, by which a resumed run finds it."""
    assert str(Policy.parse(spec)) == spelled
    assert Policy.parse(spelled) == Policy.parse(spec)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("oae:k0=4", "one of stock, pruned, oea, paper, lynx, xshare, sere"),
        ("oae:k0=4", "did you mean oea?"),
        ("", "got:      nothing"),
        ("oea:k=4", "one of k0, max_rank"),
        ("oea:k=4", "did you mean k0?"),
        ("oea:k0=4,k0=5", "one of max_rank"),
        ("stock:k0=4", "no parameter more"),
        ("oea", "oea:k0=VALUE"),
        ("sere:top=2", "the policy sere needs rho"),
        ("oea:k0=four", "expected: a whole number"),
        ("oea:k0", "got:      k0="),
        ("paper:k0=4,p=half", "expected: a number"),
    ],
)
def test_refusals(spec, said):
    """Holds that a spec that cannot be read is refused with what could be."""
    with pytest.raises(LabError) as refusal:
        Policy.parse(spec)
    assert said in str(refusal.value) and f"--policy {spec}" in str(refusal.value)


def test_default_set():
    """Holds that the default policies are at least eight, fit the model, and show every family."""
    torch.manual_seed(0)
    gate = torch.randn(4, 16, 64).softmax(-1)
    weights, ids = gate.topk(8)
    batch = Batch(gate, gate, ids, weights, True, similarity=torch.eye(64))
    policies = [Policy.parse(spec) for spec in default_specs(batch, calibrated=True)]
    assert len(set(policies)) >= 8
    assert {policy.name for policy in policies} == set(POLICIES) - TRIED
    for policy in policies:
        policy(batch)
    # p limits some rows and not others
    limited = next(p for p in policies if "p" in dict(p.parameters))
    narrow = dict(limited.parameters) | {"kmax": 4, "max_rank": 1}
    ids = Policy("paper", tuple(narrow.items()))(batch).ids
    assert 0 < (ids < 0).any(-1).float().mean() < 1
    assert not any(Policy.parse(spec).calibrated for spec in default_specs(batch, calibrated=False))
