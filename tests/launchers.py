"""Dry runs of the launch scripts, read as bash reads what they print."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
GLM5 = SCRIPTS / "launch_glm5_nvfp4.sh"
QWEN3 = SCRIPTS / "launch_qwen3_30b.sh"
RELEASES = ("0.5.9", "0.5.18", "0.5.23")


@dataclass(frozen=True)
class Printed:
    """What a dry run would start: the whole command, and the text as it was printed."""

    words: list[str]
    text: str

    @property
    def variables(self) -> dict[str, str]:
        """What `env` sets for the server."""
        given = self.words[1 : self.words.index("-m") - 1]
        return dict(word.split("=", 1) for word in given if "=" in word)

    @property
    def module(self) -> str:
        """What Python runs."""
        return self.words[self.words.index("-m") + 1]

    @property
    def flags(self) -> list[str]:
        """SGLang's arguments."""
        return self.words[self.words.index("-m") + 2 :]

    def value(self, flag: str) -> list[str]:
        """The values of a flag; the flag must be there once."""
        assert self.flags.count(flag) == 1, (flag, self.flags)
        rest = self.flags[self.flags.index(flag) + 1 :]
        ends = [i for i, word in enumerate(rest) if word.startswith("--")]
        return rest[: ends[0]] if ends else rest


def run(script: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
    """Run a launcher to its end, without the variables of whoever tests.

    From a folder of nothing: Python takes packages from where it is started.
    """
    environment = {k: os.environ[k] for k in ("PATH", "HOME")} | settings
    return subprocess.run(
        ["bash", str(script), *arguments],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )


def dry_run(script: Path, *arguments: str, release: str = "0.5.23", **settings: str) -> Printed:
    """What a launcher prints for a release, installed or not."""
    done = run(script, "--dry-run", "--sglang-version", release, *arguments, **settings)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    array, call = done.stdout.rsplit(")\n", 1)
    assert call == '"${serve[@]}"\n'
    show = f"{array})\nprintf '%s\\0' \"${{serve[@]}}\""
    words = subprocess.run(["bash", "-c", show], check=True, capture_output=True, text=True).stdout
    return Printed(words.split("\0")[:-1], done.stdout)
