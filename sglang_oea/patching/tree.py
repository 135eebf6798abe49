"""A folder of SGLang's sources: where it is, which release it says it is, and how it is changed."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sglang_oea.core.config import explain

# path below the folder that holds sglang/ -> content, None where there is no such file
Files = dict[str, bytes | None]


class PatchError(Exception):
    """What was asked for cannot be done; nothing was changed."""

    def __init__(self, what: str, *, where: object, got: str, expected: str, fix: str):
        told = explain(what, where=where, got=got, expected=expected, fix=fix)
        super().__init__(f"error: {told}")


@dataclass(frozen=True)
class Tree:
    """A folder that holds `sglang/`: of an installation, or `python/` of a checkout."""

    root: Path

    @classmethod
    def find(cls, target: str | None) -> "Tree":
        """The tree of `--target`, or the SGLang that this Python would import."""
        if target is None:
            spec = find_spec("sglang")
            if spec is None or not spec.submodule_search_locations:
                raise PatchError(
                    "no SGLang to patch",
                    where=sys.executable,
                    got="no package sglang",
                    expected="SGLang installed for this Python, or --target DIR",
                    fix="name a checkout or a site-packages folder with --target",
                )
            return cls(Path(next(iter(spec.submodule_search_locations))).resolve().parent)
        given = Path(target).resolve()
        for root in (given / "python", given, given.parent):
            if (root / "sglang" / "srt").is_dir() and (
                root != given.parent or given.name == "sglang"
            ):
                return cls(root)
        raise PatchError(
            "this is no SGLang tree",
            where=given,
            got="a folder without sglang/srt" if given.is_dir() else "no such folder",
            expected="a checkout of SGLang, or a folder that holds the package sglang",
            fix="give the folder that holds python/sglang, or site-packages",
        )

    @property
    def release(self) -> str | None:
        """The release that the tree says it is; a checkout does not."""
        stated = self.root / "sglang" / "_version.py"
        if stated.is_file():
            found = re.search(r"^__version__ = .*?'([^']+)'", stated.read_text(), re.MULTILINE)
            return found and found[1]
        names = [path.name for path in self.root.glob("sglang-*.dist-info")]
        return names[0].removeprefix("sglang-").removesuffix(".dist-info") if names else None

    def read(self, paths: list[str]) -> Files:
        """The files at these paths."""
        files = {path: self.root / path for path in paths}
        return {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}

    def write(self, files: Files) -> None:
        """Replace files, all of them or none; None takes one away.

        Raises:
            PatchError: the tree could not be written, and is as it was.
        """
        before = self.read(list(files))
        changed = {path: content for path, content in files.items() if content != before[path]}
        # both sides are on the disk before the first file is replaced: going on and going back are
        # renames, which need no room
        fresh = {path: self._beside(path, "new") for path in changed}
        kept = {path: self._beside(path, "old") for path in changed}
        try:
            for path in changed:
                self._stage(path, fresh[path], changed[path])
                self._stage(path, kept[path], before[path])
            for path in changed:
                self._take(path, fresh[path])
        except BaseException as error:
            # an interrupt can fall between a replacement and any note of it: the files tell
            for path, content in self.read(list(changed)).items():
                if content != before[path]:
                    self._take(path, kept[path])
            if isinstance(error, OSError):
                raise _not_writable(self.root, error) from error
            raise
        finally:
            for staged in (*fresh.values(), *kept.values()):
                if staged.exists():
                    staged.unlink()
            self._drop_empty({(self.root / path).parent for path in changed})

    def _beside(self, path: str, side: str) -> Path:
        return self.root / f"{path}.oea-{side}"

    def _stage(self, path: str, staged: Path, content: bytes | None) -> None:
        if content is None:
            return
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        if (self.root / path).exists():
            shutil.copymode(self.root / path, staged)

    def _take(self, path: str, staged: Path) -> None:
        if staged.exists():
            os.replace(staged, self.root / path)
        else:
            (self.root / path).unlink(missing_ok=True)

    def _drop_empty(self, folders: set[Path]) -> None:
        # one that holds nothing but bytecode could still be imported
        for folder in folders:
            if folder.is_dir() and {item.name for item in folder.iterdir()} <= {"__pycache__"}:
                shutil.rmtree(folder)


def _not_writable(root: Path, error: OSError) -> PatchError:
    return PatchError(
        "the tree cannot be written",
        where=root,
        got=str(error),
        expected="files that this user may replace",
        fix="run this as the user who owns the tree; nothing was changed",
    )
