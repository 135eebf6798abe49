#!/usr/bin/env python3
"""Make `patches/sglang-<release>.patch` from SGLang's own wheels and this package's core/.

    python scripts/make_patches.py            writes all of them
    python scripts/make_patches.py --check    exits 1 if a committed one is not what this makes

Nothing in a patch is edited by hand: the edits of SGLang's files are in patch_edits.py, the rest is
core/ verbatim. A patch that is made or checked is also applied to the pristine files, compiled, and
reversed, and the pristine bytes must come back.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from patch_edits import EDITS, HOME
from wheels import unpacked

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "patches"
CORE = ROOT / "sglang_oea" / "core"
# nothing of the user's own settings decides how a patch looks
GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def edited(release: str) -> dict[str, tuple[str | None, str]]:
    """Path below `python/` -> (content in the wheel or None, content with OEA)."""
    wheel = unpacked(release)
    changes: dict[str, tuple[str | None, str]] = {}
    for edit in EDITS[release]:
        if edit.path not in changes:
            pristine = (wheel / edit.path).read_text(encoding="utf-8")
            changes[edit.path] = (pristine, pristine)
        pristine, changed = changes[edit.path]
        changes[edit.path] = (pristine, edit.apply(changed))
    for source in sorted(CORE.glob("*.py")):
        changes[f"{HOME}/{source.name}"] = (None, source.read_text(encoding="utf-8"))
    return changes


def made(release: str) -> str:
    """The text of one release's patch, tried on the pristine files."""
    changes = edited(release)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        _git(tree, "init", "--quiet")
        _write(tree, {path: before for path, (before, _) in changes.items()})
        _git(tree, "add", "--all")
        pristine = _git(tree, "write-tree").strip()
        _write(tree, {path: after for path, (_, after) in changes.items()})
        _git(tree, "add", "--all")
        patch = _git(tree, "diff", "--cached", "--full-index", "--no-renames", pristine)
        _try_out(tree, pristine, patch, changes)
    return patch


def _try_out(
    tree: Path, pristine: str, patch: str, changes: dict[str, tuple[str | None, str]]
) -> None:
    _git(tree, "read-tree", "--reset", "-u", pristine)
    (tree / "oea.patch").write_text(patch, encoding="utf-8")
    _git(tree, "apply", "oea.patch")
    for path, (_, after) in changes.items():
        source = (tree / "python" / path).read_text(encoding="utf-8")
        _refuse_unless(source == after, f"{path} is not as edited once the patch is applied")
        compile(source, path, "exec")
    _git(tree, "apply", "--reverse", "oea.patch")
    for path, (before, _) in changes.items():
        file = tree / "python" / path
        found = file.read_text(encoding="utf-8") if file.exists() else None
        _refuse_unless(found == before, f"{path} is not pristine once the patch is reversed")


def _refuse_unless(holds: bool, problem: str) -> None:
    if not holds:
        raise SystemExit(f"error: {problem}")


def _write(tree: Path, files: dict[str, str | None]) -> None:
    for path, text in files.items():
        if text is not None:
            file = tree / "python" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=tree, env=GIT_ENVIRONMENT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"error: git {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the patches; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a patch is out of date"
    )
    args = parser.parse_args(argv)
    stale = []
    for release in EDITS:
        file = PATCHES / f"sglang-{release}.patch"
        patch = made(release)
        if args.check:
            if not file.exists() or file.read_text(encoding="utf-8") != patch:
                stale.append(file.name)
            continue
        PATCHES.mkdir(exist_ok=True)
        file.write_text(patch, encoding="utf-8")
        print(f"{file.relative_to(ROOT)}: {len(patch.splitlines())} lines")
    known = {f"sglang-{release}.patch" for release in EDITS}
    left = sorted(file.name for file in PATCHES.glob("*.patch") if file.name not in known)
    if stale:
        print(f"error: {', '.join(stale)}: not what scripts/make_patches.py makes", file=sys.stderr)
        print("  fix: run it without --check, and commit what it writes", file=sys.stderr)
    if left:
        print(f"error: {', '.join(left)}: a patch of no release in patch_edits.py", file=sys.stderr)
        print("  fix: remove it, or add its release", file=sys.stderr)
    return int(bool(stale or left))


if __name__ == "__main__":
    sys.exit(main())
