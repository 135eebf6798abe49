"""Texts: documents, sequences, and files that are refused."""

import json

import pytest
import torch
from make_demo_model import make_tokenizer

from sglang_oea.lab.errors import LabError
from sglang_oea.lab.texts import documents, sequences


@pytest.fixture
def tokenizer():
    """One token a byte."""
    return make_tokenizer()


def jsonl(path, *texts):
    """A file of documents."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_pieces_stay_within_a_document(tmp_path, tokenizer):
    """Holds that a sequence is a whole piece of one document, and each piece is taken once."""
    file = jsonl(tmp_path / "t.jsonl", "aaaaabbbbbccc", "dddddeeee", "xyz")
    found = sequences(file, tokenizer, count=3, length=5, seed=0)
    texts = sorted(tokenizer.batch_decode(found))
    assert texts == ["aaaaa", "bbbbb", "ddddd"]


def test_seed_draws(tmp_path, tokenizer):
    """Holds that the seed alone decides which pieces are taken and who is beside whom."""
    file = tmp_path / "t.txt"
    file.write_text("".join(chr(33 + i) for i in range(90)))
    draws = [sequences(file, tokenizer, count=6, length=9, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert len({tuple(row) for row in draws[0].tolist()}) == 6


def test_kinds_of_files(tmp_path):
    """Holds that plain text is one document, blank lines of JSONL are none, newlines stay."""
    plain = tmp_path / "t.md"
    plain.write_text("one\n\ntwo\n")
    assert documents(plain) == ["one\n\ntwo\n"]
    lines = jsonl(tmp_path / "t.jsonl", "one\ntwo", "three")
    lines.write_text(lines.read_text() + "\n \n")
    assert documents(lines) == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("content", "fix"),
    [("abcde" * 3, "--sequences 3 or fewer, a smaller --length"), ("abc", "a smaller --length")],
)
def test_too_short(tmp_path, tokenizer, content, fix):
    """Holds that a text too short for what is asked is refused with both numbers."""
    file = tmp_path / "t.txt"
    file.write_text(content)
    with pytest.raises(LabError) as refusal:
        sequences(file, tokenizer, count=8, length=5, seed=0)
    said = str(refusal.value)
    assert f"{len(content) // 5} sequences of 5 tokens, from 1 documents" in said
    assert "8 sequences of 5 tokens" in said and f"fix:      {fix}" in said and str(file) in said


@pytest.mark.parametrize("line", ["{", '{"txt": "a"}', '{"text": 7}', '["text"]', "null", "text"])
def test_line_that_is_no_document(tmp_path, line):
    """Holds that a line of JSONL that is no document is refused by its number."""
    file = jsonl(tmp_path / "t.jsonl", "fine")
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(LabError) as refusal:
        documents(file)
    assert f"{file}, line 2" in str(refusal.value) and line in str(refusal.value)


def test_unreadable(tmp_path):
    """Holds that a missing file and one that is not UTF-8 are refused by name."""
    binary = tmp_path / "t.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "none.txt", binary, tmp_path):
        with pytest.raises(LabError, match="the text cannot be read") as refusal:
            documents(file)
        assert str(file) in str(refusal.value)
