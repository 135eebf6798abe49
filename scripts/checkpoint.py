#!/usr/bin/env python3
"""What a checkpoint's folder says of itself: experts, MTP layers, quantisation, shards.

Reads JSON and the headers of safetensors files, never a weight. As a command it prints `key=value`
lines for the launchers. Standard library only: it runs before SGLang is known to be there.
"""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8


class CheckpointError(ValueError):
    """The folder is no checkpoint that can be read; one line that says why."""


@dataclass(frozen=True)
class Shard:
    """One safetensors file as its own header describes it; `problem` is empty on a whole one."""

    name: str
    tensors: frozenset[str] = frozenset()
    tensor_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """Facts of one folder. `shards` reads the safetensors files' headers when first asked for."""

    folder: Path
    architecture: str
    layers: int
    experts: int
    slots: int
    nextn_layers: int
    quantised_to: str
    kept_apart: tuple[str, ...]
    index: dict[str, str]
    index_bytes: int | None

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint":
        """Read the JSON files of a folder.

        Raises:
            CheckpointError: no `config.json` there, or a JSON file that does not parse.
        """
        described = _json(folder / "config.json")
        if described is None:
            raise CheckpointError(f"{folder} has no config.json; give the folder of a checkpoint")
        # multimodal checkpoints keep the language model's settings one level down
        described = {**described, **_object(described, "text_config")}
        beside = _json(folder / "hf_quant_config.json") or {}
        quantisations = (
            _object(described, "quantization_config"),
            _object(beside, "quantization") or beside,
        )
        index = _json(folder / INDEX) or {}
        return cls(
            folder=folder,
            architecture=(described.get("architectures") or ["unknown"])[0],
            layers=_number(described, "num_hidden_layers"),
            experts=_number(described, "n_routed_experts", "num_experts", "num_local_experts"),
            slots=_number(described, "num_experts_per_tok", "moe_topk", "top_k_experts"),
            nextn_layers=_number(described, "num_nextn_predict_layers"),
            quantised_to=" ".join(map(_algorithm, quantisations)).upper(),
            kept_apart=tuple(name for section in quantisations for name in _excluded(section)),
            index=_object(index, "weight_map"),
            index_bytes=_object(index, "metadata").get("total_size"),
        )

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Every safetensors file that the index names, or that is there where it has no index."""
        if not self.index:
            return tuple(_shard(path) for path in sorted(self.folder.glob("*.safetensors")))
        expected: dict[str, set[str]] = {}
        for tensor, file in self.index.items():
            expected.setdefault(file, set()).add(tensor)
        return tuple(_shard(self.folder / file, expected[file]) for file in sorted(expected))

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Names of the weights, from the index or from the shards."""
        return frozenset(self.index) or frozenset().union(*(s.tensors for s in self.shards))

    @property
    def mtp_layers(self) -> int:
        """Layers for multi-token prediction, 0 where their weights were left out.

        They follow the hidden layers: GLM-5 has 0 to 77, its MTP layer is 78. Most quantised copies
        keep the setting and drop the layer.
        """
        if not self.tensors:
            return self.nextn_layers
        there = {layer for layer in map(_layer, self.tensors) if layer >= self.layers}
        return min(self.nextn_layers, len(there))

    @property
    def nvfp4(self) -> bool:
        """Whether weights are NVFP4, as ModelOpt or compressed-tensors name it."""
        return "NVFP4" in self.quantised_to

    @property
    def excludes_shared_experts(self) -> bool:
        """Whether the shared experts are kept at a higher precision than the routed ones.

        Such an expert does not fit into the packed FP4 buffers of the routed ones. The quantisation
        settings say so as a rule; where they do not, an expert without scales is not quantised.
        """
        if any(_is_shared_expert(name) for name in self.kept_apart):
            return True
        shared = [
            name
            for name in self.tensors
            if _is_shared_expert(name) and 0 <= _layer(name) < self.layers
        ]
        return self.nvfp4 and bool(shared) and not any("scale" in name for name in shared)


def main(argv: list[str] | None = None) -> int:
    """Print `key=value` lines of the folder named on the command line."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 1 or given[0].startswith("-"):
        wanted = given in (["-h"], ["--help"])
        print("usage: checkpoint.py FOLDER", file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    try:
        checkpoint = Checkpoint.read(Path(given[0]))
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"architecture={checkpoint.architecture}")
    for key in ("experts", "slots", "mtp_layers", "excludes_shared_experts", "nvfp4"):
        print(f"{key}={int(getattr(checkpoint, key))}")
    return 0


def _json(path: Path) -> dict | None:
    """A JSON object, or None where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, expected an object")
    return found


def _object(described: dict, key: str) -> dict:
    found = described.get(key)
    return found if isinstance(found, dict) else {}


def _number(described: dict, *names: str) -> int:
    return next((described[n] for n in names if isinstance(described.get(n), int)), 0)


def _algorithm(section: dict) -> str:
    """Every word by which a quantisation section may call its format."""
    mixed = _object(section, "quantized_layers").values()
    named = [layer.get("quant_algo") for layer in mixed if isinstance(layer, dict)]
    named += [section.get("quant_algo"), section.get("format")]
    return " ".join(sorted({word for word in named if isinstance(word, str)}))


def _excluded(section: dict) -> Iterable[str]:
    for key in ("exclude_modules", "ignore", "modules_to_not_convert"):
        yield from (name for name in section.get(key) or () if isinstance(name, str))


def _is_shared_expert(name: str) -> bool:
    # a shared expert's own gate is a small linear layer of its own, never fused
    return "shared_expert" in name and "shared_expert_gate" not in name


def _layer(tensor: str) -> int:
    found = re.search(r"(?:^|\.)layers\.([0-9]+)\.", tensor)
    return int(found[1]) if found else -1


def _shard(path: Path, expected: Iterable[str] = ()) -> Shard:
    """Judge a file by its header: 8 bytes of length, JSON with the tensors' offsets, then data."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > size - LENGTH_BYTES:
                return Shard(path.name, problem=f"{size} bytes cannot hold its own header")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensor_bytes = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except FileNotFoundError:
        return Shard(path.name, problem="missing")
    except OSError as error:
        return Shard(path.name, problem=f"cannot be read: {error.strerror}")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return Shard(path.name, problem="has no safetensors header")
    whole, lacking = LENGTH_BYTES + length + tensor_bytes, set(expected) - set(header)
    problem = ""
    if size != whole:
        problem = f"{size} bytes, its header says {whole}"
    elif lacking:
        problem = f"lacks {len(lacking)} tensors of the index, such as {min(lacking)}"
    return Shard(path.name, frozenset(header), tensor_bytes, problem)


if __name__ == "__main__":
    sys.exit(main())
