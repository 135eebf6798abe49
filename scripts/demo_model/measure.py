"""Figures of a language model with a Mixture of Experts: loss on held-out text, T, and samples."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from demo_model.architecture import gates
from sglang_oea.lab.policies.batch import active

# sequences that decode together when T is measured
BATCH = 16


def sequences(documents: Iterable[dict[str, str]], tokenizer: Any, length: int) -> torch.Tensor:
    """Whole pieces `[n, length]` of the documents: all first pieces, all second pieces, and so on.

    So a batch of neighbours is as mixed as the requests of as many users.
    """
    pieces = []
    for row in documents:
        tokens = torch.tensor(tokenizer(row["text"]).input_ids)
        pieces += [(i, tokens[i : i + length]) for i in range(0, len(tokens) - length + 1, length)]
    return torch.stack([piece for _, piece in sorted(pieces, key=lambda pair: pair[0])])


@contextlib.contextmanager
def routed(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collects the chosen experts `[rows, K]` of each Mixture-of-Experts layer of each forward."""
    chosen: list[torch.Tensor] = []
    hooks = [g.register_forward_hook(lambda *call: chosen.append(call[2][2])) for g in gates(model)]
    try:
        yield chosen
    finally:
        for hook in hooks:
            hook.remove()


def uniform(experts: int, top_k: int, rows: int) -> float:
    """T of a router that draws uniformly: N(1-(1-K/N)^B)."""
    return experts * (1 - (1 - top_k / experts) ** rows)


def union(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """T `[layers, positions]` of choices `[layers, B, positions, K]`, all B decoding in step."""
    return active(chosen.transpose(1, 2), experts)


@torch.no_grad()
def evaluate(model: Any, held_out: torch.Tensor, tokenizer: Any) -> dict[str, Any]:
    """Loss of sequences `[n, length]`, T over batches of 16 of them, and the load of the experts.

    Loads are in fair shares: 1 is an expert's part of a balanced layer.

    Raises:
        ValueError: fewer sequences than a batch.
    """
    if len(held_out) < BATCH:
        raise ValueError(
            f"T needs {BATCH} held-out sequences; got {len(held_out)}. Fix: hold out more text."
        )
    was_training = model.training
    model.eval()
    experts, top_k = model.config.n_routed_experts, model.config.num_experts_per_tok
    spelled = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    # a byte-level tokenizer spells one byte as one character
    sizes = torch.tensor([len(token) for token in spelled])
    nats, predicted, size = 0.0, 0, 0
    unions, loads = [], []
    for group in held_out[: len(held_out) // BATCH * BATCH].split(BATCH):
        with routed(model) as chosen:
            logits = model(input_ids=group, use_cache=False).logits[:, :-1]
        target = group[:, 1:].flatten()
        nats += cross_entropy(logits.flatten(0, 1).float(), target, reduction="sum").item()
        predicted += target.numel()
        size += int(sizes[target].sum())
        ids = torch.stack(chosen)
        unions.append(union(ids.unflatten(1, group.shape), experts).float().mean(-1))
        counts = [layer.flatten().bincount(minlength=experts) for layer in ids]
        loads.append(torch.stack(counts) * experts / ids[0].numel())
    model.train(was_training)
    layers, load = torch.stack(unions).mean(0), torch.stack(loads).mean(0)
    return {
        "held_out": nats / predicted,
        "per_byte": nats / size,
        "T": layers.mean().item(),
        "T_of_uniform": layers.mean().item() / uniform(experts, top_k, BATCH),
        "least_load": load.min().item(),
        "most_load": load.max().item(),
        "T_by_layer": [round(t, 2) for t in layers.tolist()],
    }


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompt: str, tokens: int, temperature: float = 0.0) -> str:
    """A prompt and its continuation; the most likely one at temperature 0."""
    was_training = model.training
    model.eval()
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    draw = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **draw)
    model.train(was_training)
    return tokenizer.decode(out[0], skip_special_tokens=True)
