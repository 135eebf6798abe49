"""Small trees of SGLang: the files that a release's patch touches, and what states the release."""

import os
import re
import shutil
from pathlib import Path

from wheels import unpacked

from sglang_oea import cli
from sglang_oea.patching.patch import Patch

RELEASES = Patch.releases()
OEA = "sglang/srt/layers/moe/oea"
TOPK = "sglang/srt/layers/moe/topk.py"
# what an installed package has besides, as far as anything here looks at it
STATED = ("sglang/__init__.py", "sglang/version.py", "sglang/_version.py")


def installed(folder: Path, release: str) -> Path:
    """`folder` as a `site-packages` that holds this release, pristine."""
    return _copied(folder, release, STATED)


def checkout(folder: Path, release: str) -> Path:
    """`folder` as a git checkout of this release, which has no file that states it."""
    _copied(folder / "python", release, STATED[:1])
    return folder


def _copied(folder: Path, release: str, besides: tuple[str, ...]) -> Path:
    wheel = unpacked(release)
    for path in (*Patch(release).paths, *besides):
        if (wheel / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel / path, folder / path)
    return folder


def snapshot(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Every file and folder below `root`: its mode, and a file's bytes."""
    return {
        path.relative_to(root).as_posix(): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


def edit(file: Path, old: str, new: str) -> None:
    """Replace one text, which is there."""
    text = file.read_text(encoding="utf-8")
    assert old in text, old
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def only_on_path(monkeypatch, folder: Path, *tools: str) -> None:
    """From here on PATH holds these programs and nothing else."""
    folder.mkdir()
    for tool in tools:
        found = shutil.which(tool)
        assert found, f"this test needs {tool}"
        (folder / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))


class Command:
    """`sglang-oea patch ... --target TREE`, its status and what it said."""

    def __init__(self, capsys, target: Path):
        self.capsys, self.target = capsys, target

    def __call__(self, action: str, *more: str) -> tuple[int, str, str]:
        """Run one action: `(exit status, stdout, stderr)`."""
        status = cli.main(["patch", action, "--target", os.fspath(self.target), *more])
        return status, *self.capsys.readouterr()

    def does(self, action: str, *more: str) -> str:
        """Run an action that works: what it said."""
        status, out, err = self(action, *more)
        assert (status, err) == (0, ""), err
        return out

    def refuses(self, action: str, *more: str, root: Path | None = None) -> str:
        """Run an action that is refused and leaves `root` untouched: what it said."""
        root = root or self.target
        before = snapshot(root)
        status, out, err = self(action, *more)
        assert_message(err)
        assert (status, out) == (1, "")
        assert snapshot(root) == before
        return err


def assert_message(text: str) -> None:
    """What, where, got, expected and how to go on; no traceback."""
    assert text.startswith("error: "), text
    assert "Traceback" not in text
    for part in ("where", "got", "expected", "fix"):
        assert re.search(rf"^  {part}: +\S", text, re.MULTILINE), f"no {part} in:\n{text}"
