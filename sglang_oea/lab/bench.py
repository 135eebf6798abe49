"""One model and one set of sequences, on which policies are measured unless they were before."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .evaluate import Measurement, measure, trial
from .model import Subject
from .policies import Policy
from .results import Results, Row, hash_of_tokens
from .similarity import similarities

STOCK = Policy("stock", ())
# seconds between two words on one measurement
PATIENCE = 5


@dataclass(frozen=True)
class Bench:
    """What all measurements share.

    tokens: `[S, L]`; neighbours decode together
    calibration: `[sequences, L]` tokens for policies that ask how alike experts are, or None
    say: told of progress
    """

    subject: Subject
    tokens: torch.Tensor
    results: Results
    calibration: torch.Tensor | None
    say: Callable[[str], None]

    def rows(self, policies: Sequence[Policy], batches: Sequence[int]) -> list[Row]:
        """A row for every policy at every batch size, stock first among them.

        Raises:
            LabError: a policy does not fit the model.
        """
        policies = [STOCK, *(policy for policy in dict.fromkeys(policies) if policy != STOCK)]
        similarity = None
        if any(policy.calibrated for policy in policies):
            self.say("computing how alike the experts are")
            similarity = similarities(self.subject, self.calibration)
        for policy in policies:
            trial(self.subject, policy, similarity)
        return [row for batch in batches for row in self._at(batch, policies, similarity)]

    def _at(
        self, batch: int, policies: list[Policy], similarity: list[torch.Tensor] | None
    ) -> Iterator[Row]:
        stock = None
        missing = [policy for policy in policies if self._finished(policy, batch) is None]
        for policy in policies:
            row = self._finished(policy, batch)
            # stock's hidden states, which others are compared with, are not in the file
            if row is None or (policy == STOCK and missing):
                start = time.monotonic()
                tick = self._tick(f"B={batch} {policy}")
                found, states = measure(
                    self.subject, self.tokens, batch, policy, stock, similarity, tick
                )
                stock = states if policy == STOCK else stock
                seconds = time.monotonic() - start
                self.say(f"B={batch} {policy}: measured in {seconds:.1f} s")
                if row is None:
                    row = self._row(policy, batch, found, seconds)
                    self.results.add(row)
            else:
                self.say(f"B={batch} {policy}: finished before")
            yield row

    def _finished(self, policy: Policy, batch: int) -> Row | None:
        return self.results.find((str(policy), batch, self._calibration_of(policy)))

    def _calibration_of(self, policy: Policy) -> str | None:
        return hash_of_tokens(self.calibration) if policy.calibrated else None

    def _row(self, policy: Policy, batch: int, found: Measurement, seconds: float) -> Row:
        return Row(
            self.results.setting,
            str(policy),
            batch,
            found.active.double().mean(dim=(0, 2)).tolist(),
            found.nats.tolist(),
            found.divergence.tolist(),
            found.changed.tolist(),
            round(seconds, 3),
            self._calibration_of(policy),
        )

    def _tick(self, what: str) -> Callable[[int, int], None]:
        last = time.monotonic()

        def tick(done: int, of: int) -> None:
            nonlocal last
            if done < of and time.monotonic() - last > PATIENCE:
                last = time.monotonic()
                self.say(f"{what}: {done} of {of} batches")

        return tick
