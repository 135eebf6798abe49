"""What the argument parser of another SGLang release says of a command line.

Run as a program it is the isolated half: only the release's own sources are on its path, so that
nothing of the installed one is imported. Every module of the parser is the release's own.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Answer(NamedTuple):
    """Per command line the problems that it has; every option of the release with all its names."""

    problems: list[list[str]]
    names: dict[str, list[str]]


def judge(release: str, commands: list[list[str]]) -> Answer:
    """Ask a release's parser about many command lines at once: its import takes seconds.

    A flag must be spelled out (argparse takes a unique beginning for the whole) and must not be
    deprecated in that release.
    """
    # here, since the isolated half has no other file of the repository on its path
    from wheels import unpacked

    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "PYTHONPATH": str(unpacked(release)),
    }
    done = subprocess.run(
        [sys.executable, "-P", __file__, str(unpacked(release))],
        input=json.dumps(commands),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Answer(**json.loads(done.stdout))


def _release_parser(folder: Path) -> argparse.ArgumentParser:
    import transformers

    # transformers has adopted models that 0.5.18 brings itself; no matter to a parser
    register = transformers.AutoConfig.register
    transformers.AutoConfig.register = lambda *given, **_: register(*given, exist_ok=True)
    from sglang.srt import server_args

    assert Path(server_args.__file__).is_relative_to(folder), server_args.__file__
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    return parser


def _problems(parser: argparse.ArgumentParser, command: list[str]) -> list[str]:
    found = []
    for name in (word.split("=")[0] for word in command if word.startswith("--")):
        action = parser._option_string_actions.get(name)
        if action is None:
            found.append(f"{name} is no option's full name")
        elif _is_deprecated(action):
            found.append(f"{name} is deprecated")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(command)
    except SystemExit:
        found.append(said.getvalue().strip().splitlines()[-1])
    return found


def _is_deprecated(action: argparse.Action) -> bool:
    described = (action.help or "").lstrip("(").lower()
    return type(action).__name__.startswith("Deprecated") or described.startswith("deprecated")


def _main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        parser = _release_parser(Path(sys.argv[1]))
        commands = json.load(sys.stdin)
        answer = {
            "problems": [_problems(parser, command) for command in commands],
            "names": {n: a.option_strings for n, a in parser._option_string_actions.items()},
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
