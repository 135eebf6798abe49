"""`sglang-oea patch` where it works: each release, each tool, and wherever the tree may lie."""

import os
import py_compile
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from trees import (
    OEA,
    RELEASES,
    TOPK,
    Command,
    checkout,
    edit,
    installed,
    only_on_path,
    snapshot,
)

from sglang_oea.patching.patch import Patch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["git", "patch"])
def tool(request, monkeypatch, tmp_path):
    """PATH holds one of the two."""
    only_on_path(monkeypatch, tmp_path / "bin", request.param)
    return request.param


@pytest.mark.parametrize("release", RELEASES)
def test_there_and_back(release, tool, tmp_path, capsys):
    """Holds that a patch gives the tree it promises, and is taken out without a trace.

    Bytecode that an import has left in the new folder must go with it, or Python would still find
    the package there.
    """
    tree = installed(tmp_path / "tree", release)
    pristine = snapshot(tree)
    command = Command(capsys, tree)
    assert f"sglang-{release}.patch applies to {tree}" in command.does("check")
    assert "is not applied to, and would apply to" in command.does("status")
    assert snapshot(tree) == pristine

    assert f"applied sglang-{release}.patch to {tree}" in command.does("apply")

    patched = snapshot(tree)
    changed = {path for path in patched if patched[path] != pristine.get(path)}
    assert changed == {*Patch(release).paths, OEA}
    for path in changed - {OEA}:
        py_compile.compile(str(tree / path), cfile=str(tmp_path / "compiled"), doraise=True)
    assert f"sglang-{release}.patch is applied to {tree}" in command.does("status")
    assert snapshot(tree) == patched

    py_compile.compile(str(tree / OEA / "config.py"), doraise=True)
    assert (tree / OEA / "__pycache__").is_dir()
    command.does("reverse")
    assert snapshot(tree) == pristine
    assert "is not applied to, and would apply to" in command.does("status")


@pytest.mark.parametrize("release", RELEASES)
def test_checkout_is_recognised_by_what_fits(release, tmp_path, capsys):
    """Holds that a checkout, which does not state its release, gets the patch of its own one."""
    tree = checkout(tmp_path / "sglang", release)
    pristine = snapshot(tree)
    command = Command(capsys, tree)
    assert f"applied sglang-{release}.patch" in command.does("apply")
    assert f"sglang-{release}.patch is applied to" in command.does("status")
    command.does("reverse")
    assert snapshot(tree) == pristine


@pytest.mark.parametrize("below", ["python", "python/sglang"])
def test_target_may_be_the_package_or_the_folder_above(below, tmp_path, capsys):
    """Holds that the folder `sglang` itself is a target, as is the one that holds it."""
    tree = checkout(tmp_path / "fork", "0.5.23")
    Command(capsys, tree / below).does("apply")
    assert "is applied to" in Command(capsys, tree).does("status")


def test_default_target_is_the_package_that_python_imports(tmp_path):
    """Holds that without --target the SGLang first on the path is meant."""
    tree = installed(tmp_path, "0.5.18")
    command = [sys.executable, "-m", "sglang_oea.cli", "patch", "apply"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"applied sglang-0.5.18.patch to {tree}" in done.stdout
    assert (tree / OEA / "session.py").is_file()


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("nonsense", [True, False])
def test_venv_inside_a_repository(ignored, nonsense, tmp_path, capsys, monkeypatch):
    """Holds that `git apply` cannot skip the files of a venv in a git work tree and report success.

    It does so wherever it finds a repository around its folder; a GIT_DIR that is set to something
    else must not matter either.
    """
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    if ignored:
        (repository / ".gitignore").write_text("/venv/\n")
    if nonsense:
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
        monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "nowhere"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    tree = installed(repository / "venv/lib/python3.11/site-packages", "0.5.9")
    pristine = snapshot(repository)
    command = Command(capsys, tree)
    command.does("apply")
    assert "oea.reroute_topk(" in (tree / TOPK).read_text()
    assert (tree / OEA / "session.py").is_file()
    assert "is applied to" in command.does("status")
    command.does("reverse")
    assert snapshot(repository) == pristine


def test_temporary_files_inside_a_repository(tmp_path, capsys, monkeypatch):
    """Holds that a TMPDIR in a work tree changes nothing: the trial runs there."""
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    (repository / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(repository / "tmp"))
    command = Command(capsys, installed(tmp_path / "tree", "0.5.23"))
    command.does("apply")
    assert "is applied to" in command.does("status")
    assert list((repository / "tmp").iterdir()) == []


def test_fork_that_differs_elsewhere(tool, tmp_path, capsys):
    """Holds that a fork's own changes of a patched file stay, before and after its places."""
    tree = installed(tmp_path / "tree", "0.5.9")
    topk = tree / TOPK
    topk.write_text("# a fork\n" * 7 + topk.read_text() + "\n\ndef forked():\n    return 1\n")
    forked = snapshot(tree)
    command = Command(capsys, tree)
    command.does("apply")
    text = topk.read_text()
    assert text.startswith("# a fork\n" * 7) and text.endswith("def forked():\n    return 1\n")
    assert "oea.reroute_topk(" in text
    command.does("reverse")
    assert snapshot(tree) == forked


def test_fork_that_calls_itself_otherwise(tmp_path, capsys):
    """Holds that --version chooses the patch for a tree that states a release of its own."""
    tree = installed(tmp_path / "tree", "0.5.9")
    edit(tree / "sglang/_version.py", "'0.5.9'", "'0.6.0'")
    command = Command(capsys, tree)
    assert "0.6.0" in command.refuses("apply")
    assert "applied sglang-0.5.9.patch" in command.does("apply", "--version", "0.5.9")


@pytest.mark.parametrize("build", ["0.5.9+cu130", "0.5.9.post1"])
def test_build_of_a_release(build, tmp_path, capsys):
    """Holds that a local build or a post-release is tried with its release's patch."""
    tree = installed(tmp_path / "tree", "0.5.9")
    edit(tree / "sglang/_version.py", "'0.5.9'", f"'{build}'")
    assert "applied sglang-0.5.9.patch" in Command(capsys, tree).does("apply")


def test_files_that_are_shared_with_a_package_cache(tmp_path, capsys):
    """Holds that files are replaced and not written into: uv hard-links them to its cache."""
    tree = installed(tmp_path / "tree", "0.5.23")
    cached = tmp_path / "cached"
    os.link(tree / TOPK, cached)
    pristine = cached.read_bytes()
    Command(capsys, tree).does("apply")
    assert cached.read_bytes() == pristine
    assert (tree / TOPK).read_bytes() != pristine


def test_modes_are_kept(tmp_path, capsys):
    """Holds that whoever could read a file before can read it after."""
    tree = installed(tmp_path / "tree", "0.5.23")
    (tree / TOPK).chmod(0o640)
    command = Command(capsys, tree)
    command.does("apply")
    assert (tree / TOPK).stat().st_mode & 0o777 == 0o640
    command.does("reverse")
    assert (tree / TOPK).stat().st_mode & 0o777 == 0o640
