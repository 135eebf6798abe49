"""The prose of an HTML page: headings and paragraphs, without code, tables and navigation."""

import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser

SKIPPED = {"head", "script", "style", "pre", "table", "nav", "footer", "svg", "math", "form"}
# these end a block of text; every other tag is part of a line
BLOCKS = {"body", "div", "section", "article", "p", "li", "ul", "ol", "dl", "dt", "dd", "br", "hr"}
BLOCKS |= {"html", "main", "blockquote"}
HEADINGS = {"h1", "h2", "h3", "h4"}
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": " - ", "…": "..."})
FEWEST_WORDS = 6
# letters and spaces in a paragraph, at least; below it is code, a signature or a list of numbers
PROSE = 0.85


class _Blocks(HTMLParser):
    """Collects `(is a heading, text)`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[bool, str]] = []
        self._pieces: list[str] = []
        self._skipping: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED:
            self._skipping.append(tag)
        if tag in BLOCKS | HEADINGS | SKIPPED:
            self.end_block()

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCKS | HEADINGS:
            self.end_block(tag in HEADINGS)
        if tag in self._skipping:
            # an unclosed tag within ends with it
            del self._skipping[self._skipping.index(tag) :]

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._pieces.append(data)

    def end_block(self, heading: bool = False) -> None:
        text = unicodedata.normalize("NFKC", "".join(self._pieces)).translate(PLAIN)
        text = " ".join(text.encode("ascii", "ignore").decode().split())
        self._pieces.clear()
        if text:
            self.blocks.append((heading, text))


def is_prose(text: str) -> bool:
    """Whether a block is sentences: long enough, mostly letters, ended like a sentence."""
    plain = sum(letter.isalpha() or letter == " " for letter in text)
    return (
        text[-1] in ".:!?"
        and len(text.split()) >= FEWEST_WORDS
        and plain >= PROSE * len(text)
        and text[0].isalnum()
    )


def prose(html: str) -> Iterator[str]:
    """Paragraphs in order, each heading before the paragraphs that it has, if it has any."""
    parser = _Blocks()
    parser.feed(html)
    parser.close()
    parser.end_block()
    title = None
    for heading, text in parser.blocks:
        if heading:
            # Sphinx numbers some headings and Apache adds a link to the top
            title = re.sub(r"^[\d.]+ ", "", text)
        elif is_prose(text):
            if title:
                yield title
                title = None
            yield text
