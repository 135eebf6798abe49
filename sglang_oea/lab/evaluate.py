"""A policy on B sequences that decode in step.

The t-th tokens of B sequences form one decode batch, so one forward over B sequences of L tokens is
L decode batches, teacher-forced: each layer's experts are chosen for every position from the B rows
of that position alone, which is what a server decoding these B requests computes. Attention sees
the same keys, made under the same policy.

Memory: stock's last hidden states of all sequences `[S, L, H]`, and logits of a few positions at a
time, never `[S, L, vocabulary]`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from .errors import LabError
from .model import Subject
from .policies import Batch, Policy, PolicyError, Selection
from .policies.batch import active, members
from .seam import Seen, routed

# numbers of the vocabulary-sized tensors that are held at once
LOGITS = 2**24


@dataclass(frozen=True)
class Measurement:
    """What a policy did to S sequences of L tokens, of which L - 1 are predicted."""

    # [S] float64 sums over positions: cross-entropy, KL from stock; [S] int64: other top-1 tokens
    nats: torch.Tensor
    divergence: torch.Tensor
    changed: torch.Tensor
    # [S / B, layers, L] int64: T
    active: torch.Tensor


def measure(
    subject: Subject,
    tokens: torch.Tensor,
    rows: int,
    policy: Policy,
    stock: list[torch.Tensor] | None = None,
    similarity: list[torch.Tensor] | None = None,
    tick: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Measurement, list[torch.Tensor]]:
    """Evaluate one policy at one batch size.

    Args:
        tokens: `[S, L]`, S a multiple of `rows`; neighbours decode together.
        rows: B.
        stock: the states that this function returned for the stock policy; None where this is it.
        similarity: `[N, N]` for every layer, for a policy that is calibrated.
        tick: called with the number of batches done, and of all.

    Returns:
        The measurement, and the last hidden states of every batch, on the CPU.
    """
    totals, counts, states = [], [], []
    batches = tokens.split(rows)
    for number, batch in enumerate(batches):
        with torch.inference_mode():
            batch = batch.to(subject.device)
            ours, active_experts = forward(subject, batch, policy, similarity)
            theirs = ours if stock is None else stock[number].to(subject.device)
            totals.append(_compare(subject, ours, theirs, batch))
            counts.append(active_experts.cpu())
            states.append(ours.cpu())
        tick(number + 1, len(batches))
    nats, divergence, changed = (torch.cat(part).cpu() for part in zip(*totals, strict=True))
    return Measurement(nats, divergence, changed.long(), torch.stack(counts)), states


def forward(
    subject: Subject,
    tokens: torch.Tensor,
    policy: Callable[[Batch], Selection],
    similarity: list[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward of tokens `[B, L]`: last hidden states `[B, L, H]`, and T `[layers, L]`."""
    counts: list[torch.Tensor] = []

    def choose(place: int, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        batch = subject.batch(place, seen, len(tokens), similarity)
        weights, ids = policy(batch)
        counts.append(active(ids, batch.experts))
        empty = ids < 0
        # an empty slot runs an expert of its own row at weight 0, which activates nothing more
        ids = torch.where(empty, ids.amax(-1, keepdim=True).clamp(min=0), ids)
        weights = weights.masked_fill(empty, 0.0)
        return _flat(weights), _flat(ids)

    with routed(subject.layers, choose):
        states = subject.states(tokens)
    return states, torch.stack(counts)


def trial(subject: Subject, policy: Policy, similarity: list[torch.Tensor] | None) -> None:
    """Run a policy on the probe, so that a parameter that does not fit is refused in a second.

    Raises:
        LabError: the policy refuses, or breaks the contract of `Selection`.
    """
    for place in range(len(subject.layers)):
        batch = subject.probed(place, similarity)
        try:
            weights, ids = policy(batch)
        except (PolicyError, ValueError) as error:
            raise _refused(policy, str(error), "parameters that fit the model") from None
        if weights.shape != ids.shape or ids.shape[:-1] != batch.ids.shape[:-1]:
            got = f"weights {list(weights.shape)}, ids {list(ids.shape)}"
            raise _refused(policy, got, f"two of {[*batch.ids.shape[:-1], 'slots']}")
        distinct = members(ids.clamp(max=batch.experts - 1), batch.experts).sum(-1)
        if (ids >= batch.experts).any() or (distinct != (ids >= 0).sum(-1)).any():
            raise _refused(policy, "ids twice in a row, or past N", "distinct ids below N, or -1")
        if not weights.masked_fill(ids < 0, 0.0).isfinite().all():
            raise _refused(policy, "weights that are not finite", "finite weights")


def _refused(policy: Policy, got: str, expected: str) -> LabError:
    return LabError(
        "the policy does not fit the model",
        where=f"--policy {policy}",
        got=got,
        expected=expected,
        fix="choose other parameters",
    )


def _flat(stepwise: torch.Tensor) -> torch.Tensor:
    """`[L, rows, ...]` -> `[rows * L, ...]`, sequence after sequence."""
    return stepwise.transpose(0, 1).flatten(0, 1)


def _compare(
    subject: Subject, ours: torch.Tensor, theirs: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums over positions, `[B]`: cross-entropy, KL(theirs || ours), other top-1 tokens."""
    sums = torch.zeros(3, len(tokens), dtype=torch.float64, device=tokens.device)
    for part in _parts(tokens.shape[1] - 1, len(tokens) * subject.vocabulary):
        log_p = subject.head(ours[:, part]).log_softmax(-1)
        target = tokens[:, 1:][:, part]
        sums[0] -= log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1).double().sum(1)
        if ours is theirs:
            continue
        log_q = subject.head(theirs[:, part]).log_softmax(-1)
        sums[1] += (log_q.exp() * (log_q - log_p)).sum(-1).double().sum(1)
        sums[2] += (log_q.argmax(-1) != log_p.argmax(-1)).sum(1)
    return sums[0], sums[1], sums[2]


def _parts(positions: int, numbers: int) -> Iterator[slice]:
    step = max(1, LOGITS // numbers)
    for start in range(0, positions, step):
        yield slice(start, min(start + step, positions))
