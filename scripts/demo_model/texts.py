"""Free English technical texts out of Debian packages, cleaned, split, and a tokenizer for them.

A folder of texts holds `train.jsonl` and `held_out.jsonl` (one document a line, `name` and `text`),
`sources.json` (packages, versions, licences, sizes) and `tokenizer/`.

Contract: the same package versions make the same files. Whole documents are held out, chosen by a
hash of their name. Every package's licence lets extracts be passed on.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from make_demo_model import CHAT, EOS, PAD

from demo_model.html_prose import prose


class Source(NamedTuple):
    """A package, its licence, and which of its pages are read."""

    package: str
    licence: str
    pages: str
    skip: str = r"$^"


SOURCES = (
    Source("apache2-doc", "Apache-2.0", r"apache2-doc/manual/en/.*\.html$", r"/quickreference"),
    Source("cmake-doc", "BSD-3-Clause", r"cmake-data/html/.*\.html$", r"genindex|search"),
    Source(
        "postgresql-doc-15", "PostgreSQL", r"postgresql-doc-15/html/.*\.html$", r"bookindex|biblio"
    ),
    Source("python-django-doc", "BSD-3-Clause", r"html/.*\.html$", r"/_modules/|genindex"),
    Source("python-sqlalchemy-doc", "MIT", r"html/.*\.html$", r"/_modules/|/changelog/|genindex"),
    Source(
        "python3.11-doc", "PSF-2.0", r"python3.11/html/.*\.html$", r"whatsnew/changelog|genindex"
    ),
    # the books; print.html is a whole book once more, and the older editions repeat the newest
    Source(
        "rust-doc",
        "MIT OR Apache-2.0; embedded-book: CC-BY-SA-4.0",
        r"html/(book|cargo|embedded-book|nomicon|reference|rust-by-example|rustc|rustdoc)/.*\.html$",
        r"print\.html|/(first|second|2018)-edition/",
    ),
    Source("sqlite3-doc", "public domain", r"sqlite3/.*\.html$", r"/releaselog/|/syntax/"),
)
# one document in so many is held out
HELD_OUT = 32
# characters; shorter pages are indices and stubs
SHORTEST = 600
VOCABULARY = 3072


def fetch(package: str, folder: Path) -> Path:
    """Download a package with apt-get, once.

    Raises:
        OSError: it cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(folder.glob(f"{package}_*.deb"))):
        command = ["apt-get", "download", package]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        found = sorted(folder.glob(f"{package}_*.deb"))
        if done.returncode or not found:
            raise OSError(
                f"apt-get download {package} failed: {done.stderr.strip()[-300:]}"
                " Fix: run apt-get update on a Debian 12 machine that reaches its archive."
            )
    return found[-1]


def version(deb: Path) -> str:
    """The version that a package states."""
    command = ["dpkg-deb", "--field", str(deb), "Version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def pages(deb: Path, source: Source) -> Iterator[tuple[str, str]]:
    """`(path, HTML)` of the pages of a package that are read."""
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar,
    ):
        for member in tar:
            wanted = re.search(source.pages, member.name) and not re.search(
                source.skip, member.name
            )
            if wanted and member.isfile():
                yield member.name, tar.extractfile(member).read().decode("utf-8", "replace")


def number(name: str) -> int:
    """A document's hash: random, and always the same."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def is_held_out(name: str) -> bool:
    """Whether a document is kept for validation; its name alone decides."""
    return number(name) % HELD_OUT == 0


def clean(documents: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The HTML documents of a package as prose, in the order of their names.

    A paragraph that was in an earlier document is dropped: what is held out was never trained on.
    """
    seen: set[str] = set()
    kept = []
    for name, html in sorted(documents):
        blocks = []
        for block in prose(html):
            if block not in seen:
                blocks.append(block)
                seen.add(block)
        text = "\n\n".join(blocks)
        if len(text) >= SHORTEST:
            kept.append({"name": name, "text": text})
    return kept


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """A byte-pair tokenizer of these texts; any other text costs more tokens, none is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[EOS, PAD],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, pad_token=PAD)
    tokenizer.chat_template = CHAT
    return tokenizer


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def make(folder: Path, packages: Path, say: Callable[[str], None]) -> None:
    """Fetch, clean, split and make the tokenizer; the folder appears complete or not at all."""
    documents: list[dict[str, str]] = []
    sources = []
    for source in SOURCES:
        deb = fetch(source.package, packages)
        found = clean(
            (f"{source.package}/{path.rsplit('/doc/', 1)[-1]}", html)
            for path, html in pages(deb, source)
        )
        documents += found
        size = sum(len(row["text"]) for row in found)
        sources.append(
            {
                "package": source.package,
                "version": version(deb),
                "licence": source.licence,
                "documents": len(found),
                "characters": size,
            }
        )
        say(f"{deb.name}: {len(found)} documents, {size / 1e6:.1f} M characters")
    train = [row for row in documents if not is_held_out(row["name"])]
    held_out = [row for row in documents if is_held_out(row["name"])]
    work = folder.with_name(f".{folder.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_jsonl(work / "train.jsonl", train)
    write_jsonl(work / "held_out.jsonl", held_out)
    (work / "sources.json").write_text(json.dumps(sources, indent=2) + "\n")
    train_tokenizer(row["text"] for row in train).save_pretrained(work / "tokenizer")
    work.rename(folder)
    say(f"{len(train)} documents to train on, {len(held_out)} held out")
