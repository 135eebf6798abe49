"""Findings, one line each: `ok`, `warn` or `FAIL`, and how to put it right."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from preflight.probe import Unanswered


class Line(NamedTuple):
    """One finding; `fix` is for one that is not ok."""

    verdict: str
    subject: str
    found: str
    fix: str = ""


Check = Callable[[], Iterable[Line]]


def guarded(subject: str, check: Check) -> Iterator[Line]:
    """The lines of a check; one that gets no answer, or breaks, is a warning and ends no report."""
    try:
        for line in check():
            yield line._replace(fix="") if line.verdict == "ok" else line
    except Unanswered as error:
        yield Line("warn", subject, f"not judged: {error}")
    except Exception as error:
        why = f"not judged: the probe broke ({type(error).__name__}: {error})"
        yield Line("warn", subject, why, "report this line; the other checks do not depend on it")


def show(lines: Iterable[Line]) -> int:
    """Print each line as it comes; the process's exit status."""
    counts = {"ok": 0, "warn": 0, "FAIL": 0}
    for line in lines:
        counts[line.verdict] += 1
        print(f"[{line.verdict:<4}] {line.subject}: {line.found}", flush=True)
        if line.fix:
            print(f"       -> {line.fix}", flush=True)
    ready = "not ready to serve" if counts["FAIL"] else "ready to serve, as far as can be told"
    print(f"{ready}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(counts["FAIL"] > 0)


def show_json(lines: Iterable[Line]) -> int:
    """Print all lines as one JSON object; the process's exit status."""
    found = [line._asdict() for line in lines]
    failed = any(line["verdict"] == "FAIL" for line in found)
    print(json.dumps({"ready": not failed, "lines": found}, indent=2))
    return int(failed)
