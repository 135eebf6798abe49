"""`environment.sh` on machines that cannot run SGLang: one clear line, exit 2, nothing deleted."""

import pytest
from machine import Machine, said_once


@pytest.fixture
def machine(tmp_path):
    """A machine on which everything is fine until a test breaks it."""
    return Machine(tmp_path)


@pytest.mark.parametrize("old", ["3.9.1", None])
def test_unsupported_python(machine, old):
    """Holds that a machine without a Python of the right release is told which ones are."""
    (machine.bin / "python3.11").unlink()
    if old:
        # an interpreter that answers every question with no
        machine.put("python3", f'[[ $1 == --version ]] && {{ echo "Python {old}"; exit; }}; exit 1')
    done = machine.environment("use_environment")
    said_once(done, "no Python 3.11, 3.12 or 3.13 on PATH", old or "not found")


def test_find_python_takes_what_works(machine):
    """Holds that a python3.11 that does not start, as a pyenv shim, is passed over."""
    real = (machine.bin / "python3.11").rename(machine.bin / "python3.12")
    machine.put("python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    done = machine.environment("find_python")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(real), "")


@pytest.mark.parametrize(("system", "cpu"), [("Linux", "aarch64"), ("Darwin", "x86_64")])
def test_wrong_machine(machine, system, cpu):
    """Holds that a machine without wheels is told so before pip fails to find any."""
    machine.put("uname", f"[[ $1 == -m ]] && echo {cpu} || echo {system}")
    said_once(machine.environment("use_environment"), f"this is {system} on {cpu}", "x86_64")
    assert machine.installed_nothing()


@pytest.mark.parametrize("glibc", ["2.31", "2.4", "none", "1.2.5"])
def test_old_glibc(machine, glibc):
    """Holds that glibc is compared as a version; none at all, as with musl, is too old.

    `sort -V` puts words after numbers: `none` passed for newer than 2.34.
    """
    machine.add_python(f"[[ $* == *libc_ver* ]] && {{ echo {glibc}; exit; }}")
    said_once(machine.environment("use_environment"), f"glibc is {glibc}", "2.34 or newer")
    assert machine.installed_nothing()


@pytest.mark.parametrize("glibc", ["2.34", "2.36", "2.100", "3.0"])
def test_new_glibc(machine, glibc):
    """Holds that the releases from 2.34 on pass."""
    machine.add_python(f"[[ $* == *libc_ver* ]] && {{ echo {glibc}; exit; }}")
    done = machine.environment('check_machine "$(find_python)"')
    assert (done.returncode, done.stderr) == (0, "")


def test_python_without_venv(machine):
    """Holds that Debian's Python without its venv package is told what to install."""
    machine.add_python("[[ $* == *ensurepip* ]] && exit 1")
    said_once(machine.environment("use_environment"), "apt-get install python3-venv")
    assert machine.installed_nothing()


def test_too_little_disk(machine, tmp_path):
    """Holds that a full disk is told before pip fills it, and how to move the folder."""
    kilobytes = 3 * 1024 * 1024
    machine.put("df", f"echo Filesystem; echo fake 9 9 {kilobytes} 9% /")
    venv = tmp_path / "venv"
    done = machine.environment("use_environment", SGLANG_OEA_VENV=str(venv))
    said_once(done, f"{venv} has 3 GB free", "needs 12 GB", "SGLANG_OEA_VENV")
    assert machine.installed_nothing() and not list(venv.iterdir())


def test_folder_of_something_else(machine, tmp_path):
    """Holds that SGLANG_OEA_VENV at a folder of the user's own is refused and left as it is."""
    venv = tmp_path / "photos"
    (venv / "bin").mkdir(parents=True)
    (venv / "keep").write_text("me")
    done = machine.environment("use_environment", SGLANG_OEA_VENV=str(venv))
    said_once(done, f"{venv} is no virtual environment with SGLang", "SGLANG_OEA_VENV")
    assert sorted(p.name for p in venv.iterdir()) == ["bin", "keep"]
    assert (venv / "keep").read_text() == "me" and machine.installed_nothing()


def test_environment_of_another_release(machine, tmp_path):
    """Holds that a virtual environment with another SGLang is refused, not upgraded."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    machine.put("python", "echo 0.5.9").rename(venv / "bin" / "python")
    done = machine.environment("use_environment", SGLANG_OEA_VENV=str(venv))
    said_once(done, f"{venv} holds sglang 0.5.9", "expected: sglang==")
    assert machine.installed_nothing()


def test_interrupted_installation(machine, tmp_path):
    """Holds that a failed pip is exit 2 and leaves a mark, by which the next run starts afresh."""
    venv = tmp_path / "venv"
    fake = machine.put("fake", 'echo "$*" >>"$HOME/pip"; exit 1')
    machine.put("df", "echo Filesystem; echo fake 9 9 99999999 9% /")
    # python -m venv --clear FOLDER
    made = f'mkdir -p "$4/bin"; cat "{fake}" >"$4/bin/python"; /bin/chmod +x "$4/bin/python"; exit'
    machine.add_python(f"[[ $* == '-m venv'* ]] && {{ {made}; }}")
    for attempt in (1, 2):
        done = machine.environment("use_environment", SGLANG_OEA_VENV=str(venv))
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1] == "error: pip could not install SGLang; see above"
        assert (venv / ".unfinished").exists()
        assert len((machine.home / "pip").read_text().splitlines()) == attempt


def test_requirements(machine):
    """Holds that what is installed comes from pyproject.toml, one requirement a line."""
    lines = machine.environment("requirements python3.11").stdout.splitlines()
    assert lines == sorted(lines) and not any(" " in line for line in lines)
    assert sum(line.startswith("sglang==") for line in lines) == 1


def test_with_progress(machine):
    """Holds that the wrapped command's own exit status is what comes back."""
    for status in (0, 3):
        code = f"with_progress bash -c 'exit {status}' && echo 0 || echo $?"
        assert machine.environment(code).stdout.strip() == str(status)
