"""The one place where a layer's selection is seen, and may be replaced.

A forward hook keeps what each router computed, a forward pre-hook on its experts hands them another
selection. Both are there only while `routed` is open.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .errors import LabError
from .layers import Layer


class Seen(NamedTuple):
    """One layer in one forward: its input `[rows, H]`, logits `[rows, N]`, and stock selection."""

    hidden: torch.Tensor
    logits: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


# (place of the layer, what was seen) -> (weights, ids) to execute
Choose = Callable[[int, Seen], tuple[torch.Tensor, torch.Tensor]]


@contextlib.contextmanager
def routed(layers: Sequence[Layer], choose: Choose) -> Iterator[None]:
    """While open, what every layer executes is what `choose` returns for it."""
    hooks = []
    try:
        for place, layer in enumerate(layers):
            hooks += _attach(place, layer, choose)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _attach(place: int, layer: Layer, choose: Choose) -> list[Any]:
    kept: list[Any] = []

    def keep(router: torch.nn.Module, given: tuple, output: Any) -> None:
        kept[:] = [output]

    def replace(experts: torch.nn.Module, given: tuple) -> tuple[torch.Tensor, ...]:
        hidden, ids, weights = _call(layer, given)
        new_weights, new_ids = choose(place, Seen(hidden, _logits(layer, kept), ids, weights))
        return hidden, new_ids.to(ids.dtype), new_weights.to(weights.dtype)

    return [
        layer.router.register_forward_hook(keep),
        layer.experts.register_forward_pre_hook(replace),
    ]


def _call(layer: Layer, given: tuple) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = [list(getattr(argument, "shape", [])) for argument in given]
    if len(shapes) == 3 and len(shapes[0]) == 2 and shapes[1] == shapes[2]:
        return given
    raise LabError(
        "the experts of a layer are called in a way that is not known",
        where=f"{layer.name} ({type(layer.experts).__name__})",
        got=f"arguments of shape {shapes}",
        expected="hidden states [rows, H], ids [rows, K], weights [rows, K]",
        fix="evaluate a model of another family",
    )


def _logits(layer: Layer, kept: list[Any]) -> torch.Tensor:
    output = kept.pop() if kept else None
    logits = output[0] if isinstance(output, tuple) else output
    if isinstance(logits, torch.Tensor) and logits.is_floating_point():
        return logits.flatten(0, -2)
    raise LabError(
        "a router does not hand out its logits",
        where=f"{layer.name} ({type(layer.router).__name__})",
        got=type(output).__name__,
        expected="logits [rows, N], alone or first of what it returns",
        fix="evaluate a model of another family",
    )
