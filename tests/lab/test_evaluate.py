"""The evaluation against plain transformers, against decode with a cache, and against loops."""

import pytest
import tiny_models
import torch

from sglang_oea.core.routing import reroute
from sglang_oea.lab import evaluate
from sglang_oea.lab.errors import LabError
from sglang_oea.lab.evaluate import forward, measure, trial
from sglang_oea.lab.model import examine
from sglang_oea.lab.policies import POLICIES, Policy, Selection
from sglang_oea.lab.policies.batch import active
from sglang_oea.lab.seam import routed
from sglang_oea.lab.similarity import similarities

OEA = Policy.parse("oea:k0=1")
STOCK = Policy.parse("stock")


@pytest.fixture(scope="module", params=["glm4_moe", "deepseek_v3", "olmoe"])
def subject(request):
    """A sigmoid router, one with groups, and one that does not renormalise."""
    return examine(tiny_models.build(request.param))


@pytest.fixture(scope="module")
def tokens():
    """Eight sequences."""
    return tiny_models.tokens(8, 12)


def test_stock_is_plain_transformers(subject, tokens):
    """Holds that stock's cross-entropy is that of the model without the lab, to 1e-5."""
    found, _ = measure(subject, tokens, 4, STOCK)
    with torch.inference_mode():
        logits = subject.model(input_ids=tokens).logits
    plain = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    per_token = plain.double().mean(-1)
    torch.testing.assert_close(found.nats / 11, per_token, rtol=0, atol=1e-5)
    assert not found.divergence.any() and not found.changed.any()


@torch.inference_mode()
def test_is_decode_in_step(subject, tokens):
    """Holds that one forward over B sequences is what B requests decode, token by token."""
    rows = tokens[:4]
    states, distinct = forward(subject, rows, OEA)
    counts, cache = [], None

    def choose(place, seen):
        # one step of decode: all rows of the layer are one batch
        choice, gate = subject.scorings[place].scores(seen.logits)
        weights, ids = reroute(
            choice,
            gate,
            seen.ids,
            seen.weights,
            1,
            renormalize=subject.scorings[place].renormalize,
        )
        counts.append(len(ids.unique()))
        return weights, ids

    with routed(subject.layers, choose):
        for step in range(rows.shape[1]):
            output = subject.model.base_model(
                input_ids=rows[:, step : step + 1], past_key_values=cache, use_cache=True
            )
            cache = output.past_key_values
            torch.testing.assert_close(output[0][:, 0], states[:, step], rtol=1e-4, atol=1e-4)
    assert torch.tensor(counts).view(-1, len(subject.layers)).mT.tolist() == distinct.tolist()


def test_distance_to_stock(subject, tokens):
    """Holds KL and top-1 changes to their definitions, and T to a count of what was executed."""
    stock, states = measure(subject, tokens, 8, STOCK)
    found, _ = measure(subject, tokens, 8, OEA, states)
    with torch.inference_mode():
        ours = subject.head(forward(subject, tokens, OEA)[0])[:, :-1].log_softmax(-1)
        theirs = subject.head(states[0])[:, :-1].log_softmax(-1)
    kl = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(found.divergence, kl.double().sum(-1), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.changed, (ours.argmax(-1) != theirs.argmax(-1)).sum(-1))
    assert found.changed.sum() > 0 and (found.divergence > 0).all()
    assert found.active.shape == (1, len(subject.layers), 12)
    assert found.active.sum() < stock.active.sum()


def test_memory_is_bounded(subject, tokens, monkeypatch):
    """Holds that the sums do not depend on how many positions go through the head at once."""
    _, states = measure(subject, tokens, 4, STOCK)
    whole, _ = measure(subject, tokens, 4, OEA, states)
    sizes = []
    plain = type(subject).head
    monkeypatch.setattr(evaluate, "LOGITS", 4 * tiny_models.VOCABULARY * 3)
    monkeypatch.setattr(
        type(subject), "head", lambda self, s: sizes.append(s.shape[1]) or plain(self, s)
    )
    parts, _ = measure(subject, tokens, 4, OEA, states)
    assert max(sizes) == 3
    torch.testing.assert_close(parts.nats, whole.nats, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts.divergence, whole.divergence, rtol=1e-4, atol=1e-6)
    assert torch.equal(parts.changed, whole.changed)


def test_deterministic(subject, tokens):
    """Holds that the same seed gives the same numbers, bit for bit."""
    one, _ = measure(subject, tokens, 4, OEA)
    two, _ = measure(subject, tokens, 4, OEA)
    assert torch.equal(one.nats, two.nats) and torch.equal(one.active, two.active)


def test_batch_size_matters_to_the_union_alone(subject, tokens):
    """Holds that neighbours share a union and others do not: B=1 is stock, B=4 twice is not B=8."""
    stock, _ = measure(subject, tokens, 1, STOCK)
    alone, _ = measure(subject, tokens, 1, OEA)
    torch.testing.assert_close(alone.nats, stock.nats)
    half, _ = measure(subject, tokens, 4, OEA)
    first, _ = measure(subject, tokens[:4], 4, OEA)
    torch.testing.assert_close(half.nats[:4], first.nats)
    whole, _ = measure(subject, tokens, 8, OEA)
    assert (half.nats - whole.nats).abs().max() > 1e-3


@torch.inference_mode()
def test_empty_slots_run_nothing(subject, tokens):
    """Holds that an id of -1 adds nothing to a row's output and nothing to T."""
    pruned = Policy.parse("pruned:k0=1")

    def padded(batch):
        weights, ids = pruned(batch)
        empty = torch.full_like(ids, -1)
        return Selection(
            torch.cat([torch.full_like(weights, torch.nan), weights], -1),
            torch.cat([empty, ids], -1),
        )

    states, distinct = forward(subject, tokens, pruned)
    padded_states, padded_distinct = forward(subject, tokens, padded)
    torch.testing.assert_close(padded_states, states)
    assert torch.equal(padded_distinct, distinct)

    def nothing(batch):
        return Selection(torch.zeros_like(batch.weights), torch.full_like(batch.ids, -1))

    states, distinct = forward(subject, tokens, nothing)
    assert states.isfinite().all() and not distinct.any()


def test_seam_is_closed(subject, tokens):
    """Holds that the model is itself again afterwards, also after a failure."""
    before = subject.model(input_ids=tokens).logits

    def fails(batch):
        raise RuntimeError("a policy")

    with pytest.raises(RuntimeError, match="a policy"):
        forward(subject, tokens, fails)
    assert torch.equal(subject.model(input_ids=tokens).logits, before)


@torch.inference_mode()
def test_similarity(subject, tokens):
    """Holds that the similarity of two experts is the cosine of their outputs on the same rows."""
    alike = similarities(subject, tokens[:2])
    place = len(subject.layers) - 1
    experts, inputs = subject.layers[place].experts, []
    with routed(subject.layers, lambda p, s: inputs.append((p, s.hidden)) or (s.weights, s.ids)):
        for row in tokens[:2]:
            subject.states(row[None])
    hidden = torch.cat([h for p, h in inputs if p == place])
    outputs = []
    for expert in range(subject.experts):
        ids = torch.full((len(hidden), 1), expert)
        outputs.append(experts(hidden, ids, torch.ones(len(hidden), 1)).flatten())
    expected = torch.nn.functional.cosine_similarity(
        torch.stack(outputs)[:, None], torch.stack(outputs)[None], dim=-1
    )
    torch.testing.assert_close(alike[place], expected, rtol=1e-4, atol=1e-5)
    assert len(alike) == len(subject.layers) and alike[0].shape == (subject.experts,) * 2


def test_trial_accepts(subject):
    """Holds that policies which fit are not refused."""
    alike = [torch.eye(subject.experts)] * len(subject.layers)
    for spec in ("stock", "oea:k0=2", "paper:k0=1,kmax=4", "sere:top=1,rho=-1"):
        trial(subject, Policy.parse(spec), alike)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda b: Selection(b.weights, b.ids[..., :1].expand_as(b.ids)), "twice in a row"),
        (lambda b: Selection(b.weights, b.ids + b.experts), "past N"),
        (lambda b: Selection(b.weights[..., :1], b.ids), "weights ["),
        (lambda b: Selection(b.weights * torch.nan, b.ids), "not finite"),
        (lambda b: Selection(b.weights, active(b.ids, b.experts)), "weights ["),
    ],
)
def test_trial_refuses(subject, monkeypatch, broken, said):
    """Holds that a policy of one's own that breaks the contract is found out in a second."""
    monkeypatch.setitem(POLICIES, "mine", broken)
    with pytest.raises(LabError) as refusal:
        trial(subject, Policy("mine", ()), None)
    assert said in str(refusal.value) and "--policy mine" in str(refusal.value)


def test_trial_refuses_parameters(subject):
    """Holds that a parameter past the model's size is refused before anything is measured."""
    with pytest.raises(LabError, match="k0: expected 1 to kmax=3, got 4"):
        trial(subject, Policy.parse("paper:k0=4"), None)
