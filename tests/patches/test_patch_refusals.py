"""`sglang-oea patch` where it cannot: a message that helps, exit 1, and the tree untouched."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trees import (
    OEA,
    RELEASES,
    TOPK,
    Command,
    assert_message,
    checkout,
    edit,
    installed,
    only_on_path,
    snapshot,
)

from sglang_oea.patching.patch import Patch
from sglang_oea.patching.tree import PatchError, Tree

ROOT = Path(__file__).resolve().parents[2]
LISTED = "expected: one of 0.5.9, 0.5.18, 0.5.23"


@pytest.fixture
def command(tmp_path, capsys) -> Command:
    """The command on a pristine 0.5.23."""
    return Command(capsys, installed(tmp_path / "tree", "0.5.23"))


def test_applying_twice(command):
    """Holds that a second time is told apart from a tree that does not fit."""
    command.does("apply")
    for action in ("apply", "check"):
        assert "applied already" in command.refuses(action)


def test_reversing_what_is_not_applied(command):
    """Holds that there is nothing to take out of a pristine tree."""
    assert "not applied" in command.refuses("reverse")


@pytest.mark.parametrize("other", [release for release in RELEASES if release != "0.5.23"])
def test_patch_of_another_release(other, command):
    """Holds that --version cannot force a patch into a release that it was not made for."""
    for action in ("apply", "check", "reverse"):
        message = command.refuses(action, "--version", other)
        assert f"sglang-{other}.patch" in message
        assert "--version" in message
    assert f"sglang-{other}.patch is not applied to, and does not fit" in command.does(
        "status", "--version", other
    )


def test_release_without_a_patch(command):
    """Holds that the releases that have one are listed, oldest first."""
    assert LISTED in command.refuses("apply", "--version", "0.5.10")
    edit(command.target / "sglang/_version.py", "'0.5.23'", "'0.5.10'")
    for action in ("apply", "reverse", "check", "status"):
        message = command.refuses(action)
        assert "no patch for SGLang 0.5.10" in message
        assert LISTED in message


def test_checkout_that_no_patch_fits(tmp_path, capsys):
    """Holds that a checkout of an unknown release is not patched with whatever comes closest."""
    tree = checkout(tmp_path / "fork", "0.5.23")
    edit(tree / "python" / TOPK, "def select_experts(", "def choose_experts(")
    (tree / "python" / TOPK).write_text("\n")
    message = Command(capsys, tree).refuses("apply")
    assert "no patch fits" in message
    assert LISTED in message


@pytest.mark.parametrize("action", ["apply", "check"])
def test_change_where_the_patch_goes(action, command):
    """Holds that a fork's own change of a patched place is refused and named."""
    edit(
        command.target / TOPK,
        "    topk_ids, topk_weights, recorder_topk_ids = _post_process_topk_ids(\n",
        "    topk_ids, topk_weights, recorder_topk_ids = _our_own_post_process(\n",
    )
    assert TOPK in command.refuses(action)


@pytest.mark.parametrize("only", ["git", "patch"])
def test_file_in_the_way(only, command, tmp_path, monkeypatch):
    """Holds that somebody's own file of a new file's name is neither replaced nor removed."""
    only_on_path(monkeypatch, tmp_path / "bin", only)
    own = command.target / OEA / "config.py"
    own.parent.mkdir()
    own.write_text("mine = True\n")
    for action in ("apply", "reverse"):
        assert "oea/config.py" in command.refuses(action)


def test_patched_file_changed_since(command):
    """Holds that what a person changed in a patched place is not lost when it is taken out."""
    command.does("apply")
    edit(command.target / OEA / "config.py", '"1", "0"', '"yes", "no"')
    assert "oea/config.py" in command.refuses("reverse")
    assert "does not fit" in command.does("status")


@pytest.mark.parametrize("half", ["first", "second"])
def test_half_patched_tree(half, command, tmp_path):
    """Holds that a tree that something else left half patched is neither patched nor reversed."""
    pristine = installed(tmp_path / "pristine", "0.5.23")
    command.does("apply")
    paths = Patch("0.5.23").paths
    middle = len(paths) // 2
    for path in paths[:middle] if half == "first" else paths[middle:]:
        if (pristine / path).exists():
            (command.target / path).write_bytes((pristine / path).read_bytes())
        else:
            (command.target / path).unlink()
    for action in ("apply", "reverse", "check"):
        assert "not as the patch expects it" in command.refuses(action)


class Breaking:
    """Replacements and removals below a folder, of which those that `when` chooses fail."""

    def __init__(self, monkeypatch, folder: Path, when, error: BaseException):
        self.folder, self.when, self.error, self.count = folder, when, error, 0
        for name, position in (("replace", 1), ("unlink", 0)):
            monkeypatch.setattr(os, name, self._breaking(getattr(os, name), position))

    def _breaking(self, real, position):
        def call(*paths, **kwargs):
            changed = Path(paths[position])
            # neither trials elsewhere nor files that were not there before
            if changed.is_relative_to(self.folder) and changed.suffix == ".py":
                self.count += 1
                if self.when(self.count):
                    raise self.error
            return real(*paths, **kwargs)

        return call


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("reverse", [False, True])
def test_failure_half_way(reverse, error, command):
    """Holds that whatever was changed is changed back, at whichever file it fails."""
    if reverse:
        command.does("apply")
    before = snapshot(command.target)
    patch, tree = Patch("0.5.23"), Tree(command.target)
    files = patch.tried(tree.read(patch.paths), reverse).files
    for failing in range(1, len(files) + 1):
        with pytest.MonkeyPatch.context() as broken:
            breaking = Breaking(broken, command.target, lambda n, at=failing: n == at, error)
            with pytest.raises(PatchError if isinstance(error, OSError) else KeyboardInterrupt):
                tree.write(files)
            assert breaking.count >= failing
        assert snapshot(command.target) == before, f"file {failing} of {len(files)}"


@pytest.mark.parametrize("action", ["apply", "reverse"])
def test_failure_half_way_is_a_message(action, command):
    """Holds that a disk that is full, say, is named, and that it is said that nothing was lost."""
    if action == "reverse":
        command.does("apply")
    with pytest.MonkeyPatch.context() as broken:
        error = OSError(errno.ENOSPC, "No space left")
        Breaking(broken, command.target, lambda n: n == 3, error)
        message = command.refuses(action)
    assert "No space left" in message
    assert "nothing was changed" in message


def test_nothing_can_be_replaced(command):
    """Holds that undoing needs nothing that has just failed: there is nothing to undo."""
    with pytest.MonkeyPatch.context() as broken:
        error = OSError(errno.EROFS, "Read-only file system")
        Breaking(broken, command.target, lambda n: True, error)
        message = command.refuses("apply")
    assert "Read-only file system" in message
    assert "nothing was changed" in message


def test_file_where_the_new_folder_goes(command):
    """Holds that what fails before the first file is replaced is a message too, not a traceback."""
    (command.target / OEA).write_text("not a folder\n")
    assert "oea" in command.refuses("apply")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_target(command):
    """Holds that a tree that belongs to somebody else is left alone, with a message."""
    folders = [path for path in command.target.rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        message = command.refuses("apply")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert "Permission denied" in message


def test_neither_git_nor_patch(command, tmp_path, monkeypatch):
    """Holds that it is said what is needed."""
    only_on_path(monkeypatch, tmp_path / "bin")
    for action in ("apply", "reverse", "check", "status"):
        assert "install git or patch" in command.refuses(action)


@pytest.mark.parametrize(
    ("unless", "said"),
    [("false", "changed nothing"), ('[ "$2" != --reverse ]', "does not give the same bytes")],
)
def test_tool_that_reports_success_and_does_nothing(unless, said, command, tmp_path, monkeypatch):
    """Holds that bytes decide and no exit status: git returns 0 where it skips every file."""
    git = shutil.which("git")
    only_on_path(monkeypatch, tmp_path / "bin")
    stand_in = tmp_path / "bin/git"
    stand_in.write_text(f'#!/bin/sh\nif {unless}; then exec {git} "$@"; fi\n')
    stand_in.chmod(0o755)
    for action in ("apply", "check"):
        assert said in command.refuses(action)


@pytest.mark.parametrize("exists", [True, False])
def test_target_that_is_no_sglang(exists, tmp_path, capsys):
    """Holds that a folder is looked at before anything is done with it."""
    target = tmp_path / "elsewhere"
    if exists:
        (target / "sglang").mkdir(parents=True)
    message = Command(capsys, target).refuses("apply", root=tmp_path)
    assert ("without sglang/srt" if exists else "no such folder") in message


def test_no_sglang_at_all():
    """Holds that a Python without SGLang is told what to do, without a target."""
    # -S: without site-packages
    command = [sys.executable, "-S", "-m", "sglang_oea.cli", "patch", "apply"]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True)
    assert_message(done.stderr)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no SGLang to patch" in done.stderr
    assert "--target" in done.stderr
