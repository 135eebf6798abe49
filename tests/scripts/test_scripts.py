"""`demo.sh` before it installs anything, and what shellcheck says of all shell scripts."""

import shutil
import socket
import subprocess

import pytest
from machine import SCRIPTS, Machine, said_once


@pytest.fixture
def machine(tmp_path):
    """A machine on which everything is fine until a test breaks it."""
    return Machine(tmp_path)


def test_help(machine):
    """Holds that the options can be read, once, before anything is installed.

    The check of the arguments ended well on --help, and the installation began.
    """
    done = machine.demo("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage:") == 1
    for option in ("--port", "--k0", "--requests", "--tokens", "--rounds"):
        assert option in done.stdout
    assert "--cache" not in done.stdout and "--check" not in done.stdout
    assert machine.installed_nothing() and not machine.cache.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--k0", "four"], "expected a whole number from 1 on, got four"),
        (["--k0", "0"], "got 0"),
        (["--k0", "8"], "--k0 8 of top-8 is stock routing; expected 1 to 7"),
        (["--requests=-1"], "got -1"),
        (["--tokens", "1.5"], "got 1.5"),
        (["--rounds"], "expected one argument"),
        (["--port", "99999"], "port 99999 of 127.0.0.1 cannot be used"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["now"], "unrecognized arguments: now"),
    ],
)
def test_bad_options(machine, arguments, said):
    """Holds that a bad option is one error after the usage, exit 2, before any installation."""
    done = machine.demo(*arguments)
    assert done.returncode == 2 and not done.stdout
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert errors == done.stderr.splitlines()[-1:] and said in errors[0]
    assert errors[0].startswith("demo.sh: error: ") and "Traceback" not in done.stderr
    assert machine.installed_nothing() and not machine.cache.exists()


def test_taken_port(machine):
    """Holds that a port in use is said before minutes of installation."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = machine.demo("--port", str(port))
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in done.stderr.splitlines()[-1]
    assert machine.installed_nothing()


def test_demo_with_unsupported_python(machine):
    """Holds the same through demo.sh.

    A find_python that failed inside a command word ended in `: command not found` and exit 127.
    """
    (machine.bin / "python3.11").unlink()
    said_once(machine.demo(), "no Python 3.11, 3.12 or 3.13 on PATH")


def test_shellcheck():
    """Holds that the shell scripts are free of what shellcheck knows."""
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    root = SCRIPTS.parent
    files = [*sorted(map(str, SCRIPTS.glob("*.sh"))), str(root / ".ci" / "run")]
    done = subprocess.run(["shellcheck", "-x", *files], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
