"""Finished measurements: one JSON line for each policy and batch size, appended, never rewritten.

A line holds sums per sequence, so that intervals can be computed from the file alone, and says what
was measured: a model with other weights or other sequences do not belong into the same file.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from .errors import LabError

# values of each weight that tell one training from another
SAMPLES = 64


@dataclass(frozen=True)
class Setting:
    """What a measurement was made on; names are for people, hashes decide."""

    model_name: str
    text_name: str
    dtype: str
    length: int
    # of the weights as they are loaded, and of the sequences in their order
    model: str
    text: str

    @property
    def label(self) -> str:
        """The model and its text."""
        return f"{self.model_name} on {self.text_name}"


@dataclass(frozen=True)
class Row:
    """One policy at one batch size."""

    setting: Setting
    policy: str
    batch: int
    # mean T of each MoE layer over all positions
    active: list[float]
    # a number a sequence: summed cross-entropy, summed KL from stock, other top-1 tokens
    nats: list[float]
    divergence: list[float]
    changed: list[int]
    seconds: float
    # hash of the calibration text, where the policy used one
    calibration: str | None = None

    @property
    def key(self) -> tuple[str, int, str | None]:
        """What a run need not measure again."""
        return self.policy, self.batch, self.calibration

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return len(self.nats) * (self.setting.length - 1)

    def per_token(self, sums: Iterable[float]) -> torch.Tensor:
        """`[S]` float64: means of sums per sequence."""
        return torch.tensor(list(sums), dtype=torch.float64) / (self.setting.length - 1)


def hash_of_weights(model: Any) -> str:
    """Tells models apart by samples of every weight, at the precision they are loaded in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.flatten()[:: max(1, tensor.numel() // SAMPLES)]
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(values.double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def hash_of_tokens(tokens: torch.Tensor) -> str:
    """Tells sequences apart, and their order."""
    described = f"{list(tokens.shape)}".encode() + tokens.cpu().numpy().tobytes()
    return hashlib.sha256(described).hexdigest()[:16]


class Results:
    """The rows of a file (or of this run alone, where there is none)."""

    def __init__(self, path: Path | None, setting: Setting):
        """Read what is there.

        Raises:
            LabError: a line that is not a row, or a row of another model or text.
        """
        self.path, self.setting = path, setting
        self.rows: list[Row] = []
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for number, line in enumerate(lines, 1):
            row = _parse(line, f"{path}, line {number}")
            _refuse_other(row.setting, setting, f"{path}, line {number}")
            self.rows.append(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        # found out before hours of measuring, not after them
        path.open("a").close()

    def find(self, key: tuple[str, int, str | None]) -> Row | None:
        """The finished row of a key."""
        return next((row for row in self.rows if row.key == key), None)

    def add(self, row: Row) -> None:
        """Keep a row, on disk before anything else is measured."""
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")


def _parse(line: str, where: str) -> Row:
    try:
        fields_read = json.loads(line)
        setting = Setting(**fields_read.pop("setting"))
        row = Row(setting, **fields_read)
        sequences = {len(row.nats), len(row.divergence), len(row.changed)}
        if len(sequences) != 1 or not row.nats or not row.active:
            raise ValueError("lists of different lengths")
        row.per_token(row.nats)
        return row
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LabError(
            "a line of the results file is corrupt",
            where=where,
            got=line[:80] or "an empty line",
            expected="one JSON object a line, as `sglang-oea eval` writes it",
            fix="delete this line: its measurement is made again, all other lines are kept",
        ) from None


def _refuse_other(found: Setting, setting: Setting, where: str) -> None:
    named = {"model": "model_name", "text": "text_name", "dtype": "dtype", "length": "length"}
    for field in fields(Setting):
        if field.name not in named or getattr(found, field.name) == getattr(setting, field.name):
            continue
        got, expected = (
            f"{field.name} {getattr(s, field.name)} ({getattr(s, named[field.name])})"
            for s in (found, setting)
        )
        raise LabError(
            f"the results file is of another {field.name}",
            where=where,
            got=got,
            expected=expected,
            fix="name another file with --out, or give the options it was made with "
            "(--model, --dtype, --text, --length, --sequences, --seed)",
        )
