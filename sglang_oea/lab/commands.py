"""The options of `sglang-oea eval`; standard library only, until it runs."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_eval(commands: Any) -> None:
    """Add the subcommand to argparse's `add_subparsers()`."""
    parser = commands.add_parser(
        "eval",
        help="what does OEA cost in quality? cross-entropy against T, policies compared",
        description="Evaluates routing policies on a checkpoint of transformers and a text: B "
        "sequences decode in step, teacher-forced. Prints a table; exits 2 on bad input.",
        epilog="Policies are named as in `oea:k0=4` or `lynx:budget=32`; sglang_oea/lab/policies/ "
        "has one file for each, with its source. Stock is always among them.",
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a checkpoint")
    parser.add_argument(
        "--text",
        type=Path,
        required=True,
        metavar="FILE",
        help='plain text, or *.jsonl with {"text": ...} a line, that the model was not trained on',
    )
    parser.add_argument(
        "--batch",
        type=_at_least(1),
        nargs="+",
        default=[16],
        metavar="B",
        help="sequences that decode together (default: 16)",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        default=[],
        metavar="SPEC",
        help="default: one or two of each family, around half of the model's slots and experts",
    )
    parser.add_argument(
        "--against",
        default="stock",
        metavar="SPEC",
        help="the policy that differences and their intervals are to (default: stock)",
    )
    parser.add_argument(
        "--length", type=_at_least(2), default=512, help="tokens of a sequence (default: 512)"
    )
    parser.add_argument(
        "--sequences", type=_at_least(1), default=64, help="a multiple of each B (default: 64)"
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="another text, for policies that ask how alike experts are (sere)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="JSONL",
        help="keep finished measurements here; a second run goes on where the first ended",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="draw cross-entropy over T, a picture a B"
    )
    parser.add_argument("--device", help="as torch names it (default: cuda where there is one)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "auto"),
        help="auto: the checkpoint's (default: float32 on the CPU, else auto)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="draws sequences and bootstraps (default: 0)"
    )


def run_eval(args: argparse.Namespace) -> int:
    """Do it; the exit status."""
    from .errors import LabError

    try:
        from .run import run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("error: torch is missing\n  fix:      install SGLang, or torch", file=sys.stderr)
        return 2
    try:
        return run(args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"; finished measurements are in {args.out}" if args.out else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return 130


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} on, got {text}")
        return int(text)

    return number
