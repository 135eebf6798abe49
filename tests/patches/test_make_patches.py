"""What is in a patch: what scripts/make_patches.py makes, and nothing that a person typed."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import make_patches
import pytest
from patch_edits import EDITS, HOME, Edit
from trees import OEA, RELEASES, TOPK, installed

from sglang_oea.cli import main

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of `patches/`, which the script takes for the real one."""
    folder = shutil.copytree(PATCHES, tmp_path / "patches")
    monkeypatch.setattr(make_patches, "ROOT", tmp_path)
    monkeypatch.setattr(make_patches, "PATCHES", folder)
    return folder


def test_committed_patches_are_what_the_script_makes(monkeypatch):
    """Holds that a change of core/ or of an edit cannot leave a stale patch behind.

    Whatever git is told in the environment must not show in a patch either.
    """
    monkeypatch.setenv("GIT_DIR", "nowhere")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "diff.noprefix")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    assert make_patches.main(["--check"]) == 0


def test_written_patches_are_the_committed_ones(copied, capsys):
    """Holds that the script makes all of them, from nothing."""
    for file in copied.glob("*.patch"):
        file.unlink()
    assert make_patches.main([]) == 0
    printed = capsys.readouterr().out
    for release in EDITS:
        name = f"sglang-{release}.patch"
        assert (copied / name).read_bytes() == (PATCHES / name).read_bytes()
        assert f"patches/{name}: " in printed


def edited_by_hand(folder: Path) -> str:
    """One word of a comment."""
    file = folder / "sglang-0.5.18.patch"
    file.write_text(file.read_text().replace("A packed copy", "The packed copy", 1))
    return file.name


def missing(folder: Path) -> str:
    """As after an edit of EDITS for one release more."""
    (folder / "sglang-0.5.9.patch").unlink()
    return "sglang-0.5.9.patch"


def of_another_release(folder: Path) -> str:
    """One that nobody makes any more."""
    shutil.copy(folder / "sglang-0.5.9.patch", folder / "sglang-0.5.8.patch")
    return "sglang-0.5.8.patch"


def of_another_name(folder: Path) -> str:
    """One that looks alike."""
    shutil.copy(folder / "sglang-0.5.9.patch", folder / "sglang_0.5.9.patch")
    return "sglang_0.5.9.patch"


@pytest.mark.parametrize("spoil", [edited_by_hand, missing, of_another_release, of_another_name])
def test_folder_that_is_not_what_the_script_makes(spoil, copied, capsys):
    """Holds that --check fails, names the file and nothing else, and repairs nothing."""
    name = spoil(copied)
    spoilt = {file.name: file.read_bytes() for file in copied.iterdir()}
    assert make_patches.main(["--check"]) == 1
    line, fix = "".join(capsys.readouterr()).splitlines()
    assert re.findall(r"\S+\.patch", line) == [name]
    assert fix.startswith("  fix: ")
    assert {file.name: file.read_bytes() for file in copied.iterdir()} == spoilt


@pytest.mark.parametrize(("source", "found"), [("a\nb\n", 0), ("x\na\nx\n", 2)])
def test_place_that_is_absent_or_there_twice(source, found, copied, monkeypatch):
    """Holds that an edit of a file that has changed cannot land anywhere else."""
    with pytest.raises(SystemExit) as refused:
        Edit("sglang/some.py", at="x\n", text="y\n").apply(source)
    assert "sglang/some.py" in str(refused.value)
    assert f"{found} times 'x'" in str(refused.value)
    assert refused.value.code != 0

    line = {0: "no such line of SGLang", 2: "    else:\n"}[found]
    monkeypatch.setattr(make_patches, "EDITS", {"0.5.9": (Edit(TOPK, line, "y\n"),)})
    with pytest.raises(SystemExit, match=f"(?s){TOPK}.*{line.strip()}"):
        make_patches.main(["--check"])


@pytest.mark.parametrize(("before", "expected"), [(True, "a\ny\nx\n"), (False, "a\nx\ny\n")])
def test_edit_goes_next_to_its_place(before, expected):
    """Holds that nothing is replaced: what stood there still does."""
    edit = Edit("sglang/some.py", at="x\n", text="y\n", before=before)
    assert edit.apply("a\nx\n") == expected


@pytest.mark.parametrize("release", RELEASES)
def test_patch_only_adds(release):
    """Holds that a patch takes no line away from SGLang."""
    lines = (PATCHES / f"sglang-{release}.patch").read_text(encoding="utf-8").splitlines()
    removed = [line for line in lines if line.startswith("-") and not line.startswith("--- ")]
    assert removed == []


@pytest.fixture(scope="module", params=RELEASES)
def both(request, tmp_path_factory) -> tuple[Path, Path]:
    """A release's files as its wheel has them, and as they are with its patch."""
    folder = tmp_path_factory.mktemp(request.param)
    pristine = installed(folder / "pristine", request.param)
    patched = installed(folder / "patched", request.param)
    assert main(["patch", "apply", "--target", str(patched)]) == 0
    return pristine, patched


def test_patch_carries_core_verbatim(both):
    """Holds that a patched SGLang reroutes as the plugin does: by the same files."""
    _, patched = both
    assert HOME == OEA
    core = {file.name: file.read_bytes() for file in (ROOT / "sglang_oea/core").glob("*.py")}
    assert {file.name: file.read_bytes() for file in (patched / OEA).iterdir()} == core


def test_patched_files_name_nothing_new_that_is_not_there(both):
    """Holds that no function uses a name before it has one.

    A local import in `load_model` of 0.5.9 once shadowed `get_tp_group`, which the same function
    had used before: an UnboundLocalError after the weights were loaded, and only there.
    """
    pristine, patched = (findings(folder) for folder in both)
    assert patched - pristine == Counter()


def test_findings_see_such_a_local_import(both):
    """Holds that the check above can fail: the shadowing import is a finding."""
    pristine, _ = both
    runner = pristine / "sglang/srt/model_executor/model_runner.py"
    before, text = findings(pristine), runner.read_text(encoding="utf-8")
    (function,) = re.findall(r"    def load_model\(self.*?(?=\n    def )", text, re.DOTALL)
    assert "time.perf_counter()" in function
    shadowed = text.replace(function, f"{function}\n        import time\n")
    runner.write_text(shadowed, encoding="utf-8")
    try:
        new = findings(pristine) - before
    finally:
        runner.write_text(text, encoding="utf-8")
    assert ("sglang/srt/model_executor/model_runner.py", "F823") in {key[:2] for key in new}


def findings(folder: Path) -> Counter:
    """What ruff finds of undefined, unbound and redefined names: `(file, rule, message)`."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero"]
    command += ["--select", "F821,F823,F811", "--output-format", "json", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Counter(
        (
            Path(finding["filename"]).relative_to(folder.resolve()).as_posix(),
            finding["code"],
            # lines move
            re.sub(r"line \d+", "", finding["message"]),
        )
        for finding in json.loads(done.stdout)
    )


def test_ledger_has_one_row_a_patch():
    """Holds that patches/README.md says of each patch why it is there, and of no other."""
    rows = [
        set(re.findall(r"sglang-[\w.]+?\.patch", line))
        for line in (PATCHES / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    named = [name for row in rows for name in row]
    assert sorted(named) == sorted(file.name for file in PATCHES.glob("*.patch"))
