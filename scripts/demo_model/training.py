"""Training, one step after the other: order of the text, learning rate, balance, saved state."""

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from demo_model.architecture import gates
from demo_model.muon import Muon

# tokens of a step, and of a window: short ones are cheaper while the learning rate is flat
TOKENS = 4096
SHORT, LENGTH = 256, 512
RATE = 4e-3
WARM_UP = 100
# the part of the steps over which the learning rate falls to zero
FALL = 0.3
# how fast the correction bias moves
BIAS_RATE = 2e-3
# how many times more rows the most popular expert of a layer is to get than the least popular
POPULARITY = 32.0


def falls(step: int, steps: int) -> bool:
    """Whether the learning rate falls at this step."""
    return step > steps * (1 - FALL)


def schedule(step: int, steps: int) -> float:
    """The learning rate as a part of its highest value."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / (steps * FALL))


def batch(stream: torch.Tensor, step: int, seed: int, rows: int, length: int) -> torch.Tensor:
    """Windows `[rows, length + 1]` of a stream of tokens; an epoch sees each window once.

    Raises:
        ValueError: the stream is too short for one step.
    """
    windows = (len(stream) - 1) // length - 1
    if windows < rows:
        raise ValueError(f"a step needs {rows + 1} x {length} tokens of text; got {len(stream)}")
    epoch, place = divmod(step, windows // rows)
    rng = torch.Generator().manual_seed(seed * 1000 + epoch)
    shift = int(torch.randint(length, (), generator=rng))
    chosen = torch.randperm(windows, generator=rng)[place * rows : (place + 1) * rows]
    return torch.stack([stream[shift + i * length :][: length + 1] for i in chosen.tolist()])


def shares(experts: int, layer: int) -> torch.Tensor:
    """The part of a layer's rows that each expert is to get, in fair shares, in a random order.

    A geometric series. DeepSeek-V3 (arXiv 2412.19437, 2.1.2) balances towards equal parts; then T
    is that of a uniform draw, which it is in no large model (the paper's table 4: 48.8 of 82).
    """
    series = POPULARITY ** torch.linspace(0, 1, experts)
    order = torch.randperm(experts, generator=torch.Generator().manual_seed(layer))
    return (series / series.mean())[order]


def balance(gate: Any, load: torch.Tensor, share: torch.Tensor, rate: float) -> None:
    """Raise the bias of experts that get fewer rows than they are to get, and lower the others'."""
    missing = share * load.float().mean() - load
    gate.e_score_correction_bias.add_(missing.sign(), alpha=rate)


class Training:
    """A model, its optimisers and the step they are at."""

    def __init__(self, model: Any, seed: int, steps: int) -> None:
        self.model, self.seed, self.steps, self.step = model, seed, steps, 0
        inner = [p for n, p in model.named_parameters() if ".layers." in n and p.ndim > 1]
        chosen = {id(p) for p in inner}
        outer = [p for p in model.parameters() if id(p) not in chosen]
        self.optimisers = [
            Muon(inner, lr=RATE),
            torch.optim.AdamW(outer, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self._loads: list[torch.Tensor] = []
        for gate in gates(model):
            gate.register_forward_hook(self._count)

    def _count(self, gate: Any, _: Any, routed: tuple[torch.Tensor, ...]) -> None:
        if gate.training:
            self._loads.append(routed[2].flatten().bincount(minlength=gate.num_experts))

    def windows(self, stream: torch.Tensor) -> torch.Tensor:
        """The text `[rows, length + 1]` of the next step."""
        length = LENGTH if falls(self.step, self.steps) else SHORT
        return batch(stream, self.step, self.seed, TOKENS // length, length)

    def advance(self, tokens: torch.Tensor) -> float:
        """Take one step on `[rows, length + 1]`; returns the loss before it."""
        part = schedule(self.step, self.steps)
        self._loads.clear()
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = RATE * part
            optimiser.step()
            optimiser.zero_grad()
        for layer, (gate, load) in enumerate(zip(gates(self.model), self._loads, strict=True)):
            balance(gate, load, shares(len(load), layer), BIAS_RATE * part)
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        state = {
            "seed": self.seed,
            "steps": self.steps,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        work = path.with_suffix(".tmp")
        torch.save(state, work)
        work.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: it would not end as a run with these settings does from the start.
        """
        state = torch.load(path, weights_only=True)
        fell = falls(state["step"] - 1, min(state["steps"], self.steps))
        if state["seed"] != self.seed or (state["steps"] != self.steps and fell):
            raise ValueError(
                f"{path} is at step {state['step']} of {state['steps']} with seed {state['seed']};"
                f" got --steps {self.steps} --seed {self.seed}. Expected that seed, and those steps"
                f" or others whose learning rate does not fall before step {state['step']}."
            )
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step = state["step"]
