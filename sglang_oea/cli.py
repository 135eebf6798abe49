"""The command line: `sglang-oea check`."""

import argparse
import sys

from sglang_oea import __version__


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
    args = parser.parse_args(argv)

    from sglang_oea import check as checks

    return checks.run(args.model)


if __name__ == "__main__":
    sys.exit(main())
