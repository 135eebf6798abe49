"""The command line: `sglang-oea check`, `patch`, `trace` and `eval`."""

import argparse
import sys

from sglang_oea import __version__
from sglang_oea.lab import commands as lab


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="sglang-oea", description="Opportunistic Expert Activation for SGLang"
    )
    parser.add_argument("--version", action="version", version=f"sglang-oea {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="will OEA run here? versions, plugin, contract, settings, model",
        description="Says line by line whether OEA will run with the installed SGLang and the "
        "SGLANG_OEA_* variables of this shell. Needs no GPU and no server. Exits 1 on any FAIL.",
    )
    check.add_argument(
        "--model", metavar="PATH", help="folder of a checkpoint with its config.json"
    )
    patch = commands.add_parser(
        "patch",
        help="put OEA into an SGLang tree itself, for forks and releases without plugins",
        description="Applies the patch of a release to an installed SGLang or to a checkout, or "
        "takes it out again. Needs git or patch. Exits 1 where it cannot, the tree untouched.",
    )
    patch.add_argument(
        "action",
        choices=("apply", "reverse", "check", "status"),
        help="check: would it apply?  status: is it applied?",
    )
    patch.add_argument(
        "--target",
        metavar="DIR",
        help="a checkout of SGLang, or a folder that holds the package sglang (default: the one "
        "that this Python imports)",
    )
    patch.add_argument(
        "--version",
        dest="release",
        metavar="V",
        help="the release whose patch to take (default: the one that the tree states)",
    )
    trace = commands.add_parser(
        "trace",
        help="what did a server record under SGLANG_OEA_TRACE, and does it replay?",
        description="Routes every recorded call again and compares with what was served. Exits 1 "
        "where they differ, 2 where the folder is no trace.",
    )
    trace.add_argument("folder", metavar="FOLDER", help="what SGLANG_OEA_TRACE was set to")
    lab.add_eval(commands)
    args = parser.parse_args(argv)
    # only what a subcommand needs is imported
    if args.command == "patch":
        from sglang_oea.patching import commands as patching

        return patching.run(args.action, args.target, args.release)
    if args.command == "trace":
        from sglang_oea.lab import replay

        return replay.run(args.folder)
    if args.command == "eval":
        return lab.run_eval(args)
    from sglang_oea import check as checks

    return checks.run(args.model)


if __name__ == "__main__":
    sys.exit(main())
