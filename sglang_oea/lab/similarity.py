"""How alike the experts of a layer are, from their outputs on a calibration text.

Every expert of a layer runs on the same inputs, those that the stock model gives the layer. The
similarity of two experts is the cosine of their outputs over all tokens taken as one vector, which
needs only their Gram matrix `[N, N]`: it is summed up over chunks of tokens.
"""

import torch

from .model import Subject
from .seam import Seen, routed

# tokens whose outputs of all experts are held at once
CHUNK = 128


@torch.inference_mode()
def similarities(subject: Subject, tokens: torch.Tensor) -> list[torch.Tensor]:
    """`[N, N]` for every layer, float32, 1 on the diagonal; `tokens` are `[sequences, L]`."""
    grams: dict[int, torch.Tensor] = {}

    def add(place: int, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        for hidden in seen.hidden.split(CHUNK):
            outputs = _outputs(subject, place, hidden, seen.logits.shape[-1]).float().flatten(1)
            gram = (outputs @ outputs.mT).double()
            grams[place] = grams.get(place, 0) + gram
        return seen.weights, seen.ids

    with routed(subject.layers, add):
        for sequence in tokens:
            subject.states(sequence.unsqueeze(0).to(subject.device))
    return [_cosine(grams[place]) for place in range(len(subject.layers))]


def _outputs(subject: Subject, place: int, hidden: torch.Tensor, experts: int) -> torch.Tensor:
    """`[N, rows, H]`: what each expert makes of the same rows."""
    rows = len(hidden)
    ids = torch.arange(experts, device=hidden.device).repeat_interleave(rows).unsqueeze(-1)
    # forward and not the module, whose hook belongs to the selection that is being seen
    run = subject.layers[place].experts.forward
    every = run(hidden.repeat(experts, 1), ids, torch.ones_like(ids, dtype=hidden.dtype))
    return every.unflatten(0, (experts, rows))


def _cosine(gram: torch.Tensor) -> torch.Tensor:
    norm = gram.diagonal().sqrt()
    return (gram / (norm.unsqueeze(0) * norm.unsqueeze(1)).clamp(min=1e-30)).float()
