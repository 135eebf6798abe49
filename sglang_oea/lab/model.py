"""A checkpoint of transformers, made ready: MoE layers found, their scoring and the head proven."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import LabError
from .layers import Layer, find
from .policies import Batch
from .scoring import Scoring, prove
from .seam import Seen, routed

# tokens of the probe: enough that a wrong scoring cannot choose alike by chance
PROBE = (2, 32)


@dataclass(frozen=True)
class Subject:
    """A model to evaluate; `seen` is what its layers saw of the probe."""

    model: Any
    layers: tuple[Layer, ...]
    scorings: tuple[Scoring, ...]
    seen: tuple[Seen, ...]

    @property
    def experts(self) -> int:
        """N, of the first MoE layer."""
        return self.seen[0].logits.shape[-1]

    @property
    def slots(self) -> int:
        """K, of the first MoE layer."""
        return self.seen[0].ids.shape[-1]

    @property
    def vocabulary(self) -> int:
        """Tokens that the head scores."""
        return self.model.config.get_text_config().vocab_size

    @property
    def device(self) -> torch.device:
        """Where tokens have to be."""
        return self.model.device

    def batch(
        self,
        place: int,
        seen: Seen,
        rows: int,
        similarity: list[torch.Tensor] | None = None,
    ) -> Batch:
        """What a layer saw of tokens `[rows, L]`, as L decode batches."""
        scoring = self.scorings[place]
        choice, gate = scoring.scores(_stepwise(seen.logits, rows))
        return Batch(
            choice,
            gate,
            _stepwise(seen.ids, rows).long(),
            _stepwise(seen.weights, rows).float(),
            scoring.renormalize,
            place,
            len(self.layers),
            None if similarity is None else similarity[place],
        )

    def probed(self, place: int, similarity: list[torch.Tensor] | None = None) -> Batch:
        """What a layer saw of the probe: a small batch to try things on."""
        return self.batch(place, self.seen[place], PROBE[0], similarity)

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        """The last hidden states `[B, L, H]` of tokens `[B, L]`: what the head reads."""
        return self.model.base_model(input_ids=tokens, use_cache=False)[0]

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary, float32."""
        return self.model.get_output_embeddings()(states).float()


def load(folder: Path, device: str, dtype: str) -> tuple[Subject, Any]:
    """The model of a folder, ready, and its tokenizer.

    Args:
        device: as torch names it.
        dtype: as torch names it, or `auto` for the checkpoint's.

    Raises:
        LabError: no transformers, no such checkpoint, or a model that `examine` refuses.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise LabError(
            "transformers is missing",
            where="the environment of sglang-oea",
            got=error,
            expected="transformers 5, which SGLang brings",
            fix="pip install 'transformers>=5' safetensors",
        ) from None
    # the lab shows its own progress
    logging.disable_progress_bar()
    if not (folder / "config.json").is_file():
        raise _unloadable(folder, "no config.json there")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise _unloadable(folder, str(error).splitlines()[0]) from error
    return examine(model), tokenizer


@torch.inference_mode()
def examine(model: Any) -> Subject:
    """Prove on a short probe that the model can be evaluated.

    Raises:
        LabError: a dense model, a layer that is not reached or whose selection is not understood,
            or a head that does more than multiply.
    """
    model.eval()
    config = model.config.get_text_config()
    layers = find(model)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, PROBE, generator=generator).to(model.device)
    found: dict[int, Seen] = {}

    def see(place: int, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        found[place] = Seen(*(tensor.clone() for tensor in seen))
        return seen.weights, seen.ids

    with routed(layers, see):
        logits = model(input_ids=tokens, use_cache=False).logits.float()
    for place, layer in enumerate(layers):
        if place not in found:
            raise LabError(
                "a MoE layer is not reached by a forward on tokens",
                where=f"{layer.name} of {type(model).__name__}",
                got=f"{len(found)} of {len(layers)} layers reached",
                expected="every MoE layer in the path of a text",
                fix="evaluate a model of another family",
            )
    scorings = tuple(prove(layer, found[place], config) for place, layer in enumerate(layers))
    subject = Subject(model, tuple(layers), scorings, tuple(found[p] for p in range(len(layers))))
    off = (subject.head(subject.states(tokens)) - logits).abs().max()
    if not off <= 1e-3 * logits.abs().max():
        raise LabError(
            "the model's logits are more than its head on its last hidden states",
            where=type(model).__name__,
            got=f"logits that differ by up to {float(off):.2g}",
            expected="equal logits",
            fix="evaluate a model of another family",
        )
    return subject


def _stepwise(flat: torch.Tensor, rows: int) -> torch.Tensor:
    """`[rows * L, ...]`, sequence after sequence -> `[L, rows, ...]`."""
    return flat.unflatten(0, (rows, -1)).transpose(0, 1)


def _unloadable(folder: Path, got: str) -> LabError:
    return LabError(
        "the model cannot be loaded",
        where=f"--model {folder}",
        got=got,
        expected="the folder of a checkpoint that transformers loads: config.json, weights, "
        "tokenizer",
        fix="name another folder",
    )
