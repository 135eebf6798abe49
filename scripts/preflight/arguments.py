"""The command line: the preflight's own options, and those that the launcher has too."""

import argparse
from functools import partial
from pathlib import Path

SWITCHES = ("mtp", "dense", "native_dsa")
VALUES = ("model", "host", "port", "max_running", "k0")


def parse(argv: list[str]) -> argparse.Namespace:
    """The options; what is wrong with them is one line after the usage, exit 2."""
    parser = argparse.ArgumentParser(
        prog="preflight_glm5.sh",
        usage="%(prog)s [options] [-- SGLang's own flags]",
        description="Says whether this machine is ready to serve GLM-5-NVFP4 at TP=8: one line a "
        "check, ok, warn or FAIL, with the fix. Loads nothing, changes nothing. Exits 1 on any "
        "FAIL, 2 on bad usage.",
        epilog="PYTHON names the interpreter that will serve (default: python3).",
        allow_abbrev=False,
    )
    own = parser.add_argument_group("its own")
    own.add_argument(
        "--context",
        type=partial(_number, 10**7),
        default=4096,
        metavar="N",
        help="tokens of a request, prompt and answer, for the KV cache (default: 4096)",
    )
    own.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    own.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    same = parser.add_argument_group("the launcher's: give both the same")
    same.add_argument("--model", metavar="ID_OR_PATH", help="default: the launcher's")
    same.add_argument("--mtp", action="store_true", help="speculate with the MTP layer")
    same.add_argument("--k0", metavar="SPEC", help="serve with OEA")
    same.add_argument(
        "--max-running",
        type=partial(_number, 9999),
        metavar="N",
        help="default: the launcher's",
    )
    same.add_argument("--host", default="127.0.0.1", metavar="H", help="default: 127.0.0.1")
    same.add_argument(
        "--port",
        type=partial(_number, 65535),
        default=30000,
        metavar="P",
        help="default: 30000",
    )
    same.add_argument("--dense", action="store_true", help="dense attention")
    same.add_argument("--native-dsa", action="store_true", help="sparse attention")
    same.add_argument(
        "--without", action="append", default=[], metavar="FLAG", help="leave out a flag"
    )
    end = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(_joined(argv[:end]))
    args.extra = argv[end + 1 :]
    return args


def for_launcher(args: argparse.Namespace) -> list[str]:
    """The options that the launcher gets as well."""
    given = [_option(name) for name in SWITCHES if getattr(args, name)]
    for name in VALUES:
        if getattr(args, name) is not None:
            given += [_option(name), str(getattr(args, name))]
    for flag in args.without:
        given += ["--without", flag]
    return [*given, *(["--", *args.extra] if args.extra else [])]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number(high: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {high}, got {text}")
    return int(text)


def _joined(argv: list[str]) -> list[str]:
    """`--without --flag` as `--without=--flag`: argparse takes no value that begins with dashes."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--without":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
