"""A text or JSONL file -> sequences of tokens.

A sequence is a whole piece of one document, so none runs across two. Which pieces are taken, and
who decodes beside whom, is drawn by the seed.
"""

import json
from pathlib import Path
from typing import Any

import torch

from .errors import LabError


def documents(path: Path) -> list[str]:
    """The texts of a file: `.jsonl` holds `{"text": ...}` a line, any other file is one document.

    Raises:
        LabError: no such file, not UTF-8, or a line that is not as described.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(
            "the text cannot be read",
            where=path,
            got=error,
            expected="a UTF-8 text file, or JSON lines in a file named *.jsonl",
            fix="name another file with --text or --calibration",
        ) from None
    if path.suffix != ".jsonl":
        return [content]
    numbered = [pair for pair in enumerate(content.splitlines(), 1) if pair[1].strip()]
    return [_document(path, number, line) for number, line in numbered]


def _document(path: Path, number: int, line: str) -> str:
    try:
        return json.loads(line)["text"] + ""
    except (ValueError, KeyError, TypeError):
        raise LabError(
            "a line of the text file is not a document",
            where=f"{path}, line {number}",
            got=line[:80],
            expected='{"text": "..."}',
            fix="correct or delete the line; a file with another ending is read as plain text",
        ) from None


def sequences(
    path: Path, tokenizer: Any, *, count: int, length: int, seed: int, option: str = "--text"
) -> torch.Tensor:
    """`[count, length]` tokens: pieces of the file's documents, drawn by the seed.

    Raises:
        LabError: the file cannot be read, or yields fewer pieces than `count`.
    """
    pieces = []
    texts = documents(path)
    for text in texts:
        # verbose warns of texts longer than the model's context, which are cut here
        tokens = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        starts = range(0, len(tokens) - length + 1, length)
        pieces += [tokens[start : start + length] for start in starts]
    if len(pieces) < count:
        some = f"--sequences {len(pieces)} or fewer, " if pieces else ""
        raise LabError(
            "the text is too short",
            where=f"{option} {path}",
            got=f"{len(pieces)} sequences of {length} tokens, from {len(texts)} documents",
            expected=f"{count} sequences of {length} tokens, each within one document",
            fix=f"{some}a smaller --length, or a longer text",
        )
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(seed))
    return torch.tensor([pieces[i] for i in order[:count].tolist()])
