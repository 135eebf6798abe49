"""scripts/README.md: its table names what is there, and its commands are ones that run."""

import re
import subprocess

import pytest
from checkpoints import make
from launchers import SCRIPTS, run

README = (SCRIPTS / "README.md").read_text(encoding="utf-8")
FOLDER = "/data/GLM-5-NVFP4"
COMMANDS = re.findall(r"^ *(scripts/\S+\.sh.*)$", README, re.MULTILINE)


def test_table_names_each_script():
    """Holds that a script is found by its purpose; what is sourced or imported need not be."""
    listed = set(re.findall(r"`(\w+\.(?:sh|py))`", README.split("\n## ")[0]))
    assert listed <= {path.name for path in SCRIPTS.iterdir()}
    commands = {path.name for path in SCRIPTS.glob("*.sh") if path.read_text().startswith("#!")} | {
        path.name for path in SCRIPTS.glob("*.py") if path.read_text().startswith("#!")
    }
    assert commands <= listed


def test_there_are_commands():
    """Holds that the walk-through is read: preflight, a dry run, a launch, the paper's model."""
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command, tmp_path):
    """Holds that what a user copies from the README is understood by the script that it names."""
    folder = str(make(tmp_path / "GLM-5-NVFP4"))
    script, *arguments = [word.replace(FOLDER, folder) for word in command.split()]
    script = SCRIPTS / script.removeprefix("scripts/")
    if script.name.startswith("launch_"):
        arguments = [a for a in arguments if a != "--dry-run"]
        done = run(script, *arguments, "--dry-run", "--sglang-version", "0.5.23")
        assert (done.returncode, done.stderr) == (0, "")
        assert "SGLANG_OEA_K0=5 " in done.stdout
    else:
        # it judges this machine, whatever it says of it
        assert run(script, *arguments).returncode in (0, 1)


def test_question_after_oea_reads_the_counters(tmp_path):
    """Holds that the one-liner prints T from what a server answers."""
    (code,) = re.findall(r"python3 -c '\n(.*?)'\n", README, re.DOTALL)
    code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
    answer = (
        '{"internal_states": [{"oea": {"layers": {"moe": 75, "rerouted": 75}, "calls": 10, '
        '"experts_before": 1020, "experts_after": 690}}]}'
    )
    done = subprocess.run(
        ["python3", "-c", code], input=answer, capture_output=True, text=True, check=True
    )
    assert "102.0 stock, 69.0 with OEA" in done.stdout
