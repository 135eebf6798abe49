"""Ask the machine: run a command or read a file, and say why where there is no answer."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Unanswered(RuntimeError):
    """A probe got no usable answer; the message says what happened."""


def complete(
    command: Sequence[str], *, seconds: float = 30, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, however it ends.

    Raises:
        Unanswered: it is not on PATH, cannot be run, or took longer than `seconds`.
    """
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environ,
        )
    except FileNotFoundError:
        raise Unanswered(f"{name} is not on PATH") from None
    except OSError as error:
        raise Unanswered(f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{name} did not answer within {seconds:.0f} s") from None


def run(*command: str) -> str:
    """Standard output of a command that ended well.

    Raises:
        Unanswered: as `complete`, or it failed.
    """
    done = complete(command)
    if done.returncode:
        # nvidia-smi explains itself on standard output
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise Unanswered(f"{Path(command[0]).name} exited {done.returncode}: {said[-1]}")
    return done.stdout


def read(path: Path) -> str:
    """The text of a file below /proc or /sys.

    Raises:
        Unanswered: it cannot be read.
    """
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise Unanswered(f"{path} cannot be read: {error.strerror}") from None
