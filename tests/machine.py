"""A machine made of stand-ins: a PATH on which only what a test puts there can be found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TOOLS = (
    *("bash", "env", "dirname", "uname", "sort", "head", "df", "awk", "mkdir", "sha256sum", "cut"),
    *("flock", "ls", "grep", "touch", "cat", "sleep", "rm", "tr"),
)


class Machine:
    """Runs scripts with a PATH, a home and a cache of its own; `calls` is every use of Python."""

    def __init__(self, folder: Path):
        self.bin, self.home, self.cache = folder / "bin", folder / "home", folder / "cache"
        self.calls_file = folder / "calls"
        for made in (self.bin, self.home):
            made.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"these tests need {tool}"
            (self.bin / tool).symlink_to(found)
        self.add_python()

    def add_python(self, answers: str = "") -> None:
        """A python3.11 that notes its arguments; `answers` is bash that may come first.

        It refuses to install: a script that should not get there must not fetch 11 GB either.
        """
        note = f'printf "%s\\n" "$*" >>"{self.calls_file}"'
        refuse = '[[ "$*" == "-m venv"* || "$*" == "-m pip"* ]] && exit 99'
        real = f'exec "{sys.executable}" "$@"'
        self.put("python3.11", "\n".join((note, answers, refuse, real)))

    def put(self, name: str, text: str) -> Path:
        """A stand-in, in place of whatever has that name."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
        path.chmod(0o755)
        return path

    def run(self, *command: str, **settings: str) -> subprocess.CompletedProcess:
        """Run to the end, with only these variables."""
        environ = {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.cache),
            "LC_ALL": "C",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # whatever the environment of the tests needs to find its libraries
        environ |= {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        return subprocess.run(
            command, env=environ | settings, capture_output=True, text=True, timeout=60
        )

    def demo(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
        """`scripts/demo.sh` with these arguments."""
        return self.run("bash", str(SCRIPTS / "demo.sh"), *arguments, **settings)

    def environment(self, code: str, **settings: str) -> subprocess.CompletedProcess:
        """Code in a bash that has sourced `scripts/environment.sh`, as its users do."""
        source = f'set -euo pipefail; source "{SCRIPTS / "environment.sh"}"; {code}'
        return self.run("bash", "-c", source, **settings)

    def installed_nothing(self) -> bool:
        """Whether no environment was made, no pip ran, and the cache holds no more than locks."""
        calls = self.calls_file.read_text() if self.calls_file.exists() else ""
        left = [p for p in self.cache.rglob("*") if p.is_file() and p.suffix != ".lock"]
        return "-m pip" not in calls and "-m venv" not in calls and not left


def said_once(done: subprocess.CompletedProcess, *words: str) -> None:
    """Holds exit 2 and one line on standard error, with these words."""
    lines = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(word in lines[0] for word in words), lines[0]
