"""One release's patch: which files it touches, and what they become.

A patch is tried on copies of its files, forth and back, before one byte of a tree changes; what is
then written is what the trial gave. So it does not matter whether the tree lies in a git work tree,
where `git apply` would skip the files of a virtual environment and return 0.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .tree import Files, PatchError, Tree

FOLDER = Path(__file__).parent / "patches"


class Trial(NamedTuple):
    """What a patch made of copies of its files, and what speaks against it, if anything does."""

    files: Files
    objection: str | None


@dataclass(frozen=True)
class Patch:
    """One release's patch."""

    release: str

    @classmethod
    def releases(cls) -> list[str]:
        """The releases that have one."""
        names = [file.stem.removeprefix("sglang-") for file in FOLDER.glob("sglang-*.patch")]
        return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])

    @classmethod
    def choose(cls, tree: Tree, release: str | None) -> "Patch":
        """The patch for a tree: of the release that is named, that it states, or that fits."""
        # a post-release, or a build of one's own: the trial decides whether it fits
        release = re.split(r"\+|\.post", release or tree.release or "")[0] or None
        if release in cls.releases():
            return cls(release)
        if release is None:
            for candidate in map(cls, cls.releases()):
                if candidate.state(tree) in ("applied", "applies"):
                    return candidate
        raise PatchError(
            f"no patch for SGLang {release}" if release else "no patch fits this tree",
            where=tree.root,
            got=release or "a tree that does not state its release, and that no patch applies to",
            expected=f"one of {', '.join(cls.releases())}",
            fix="make one (patches/README.md says how), or name the closest one with --version",
        )

    @property
    def file(self) -> Path:
        """Where the patch is."""
        return FOLDER / f"sglang-{self.release}.patch"

    @property
    def paths(self) -> list[str]:
        """The files that it touches, below the folder that holds `sglang/`."""
        found = re.findall(r"^diff --git a/python/(\S+) ", self.file.read_text(), re.MULTILINE)
        return found

    def state(self, tree: Tree) -> str:
        """`applied`, `applies`, or why it does neither."""
        files = tree.read(self.paths)
        if self.tried(files, reverse=True).objection is None:
            return "applied"
        return self.tried(files).objection or "applies"

    def tried(self, files: Files, reverse: bool = False) -> "Trial":
        """What becomes of copies of these files."""
        with tempfile.TemporaryDirectory() as scratch:
            tree = Tree(Path(scratch, "python"))
            tree.root.mkdir()
            tree.write(files)
            objection = self._run(scratch, reverse)
            if objection is not None:
                return Trial({}, objection)
            result = tree.read(self.paths)
            if any(result[path] == files[path] for path in self.paths):
                return Trial({}, "the tool reported success and changed nothing")
            # there and back: what cannot be taken out again must not be put in
            objection = self._run(scratch, not reverse)
            if objection is None and tree.read(self.paths) != files:
                objection = "taking it back does not give the same bytes"
        return Trial(result, objection)

    def _run(self, scratch: str, reverse: bool) -> str | None:
        """Run git or patch in a folder; None, or what it said."""
        flags = ["--reverse"] if reverse else []
        git, patch = shutil.which("git"), shutil.which("patch")
        if git:
            command = [git, "apply", *flags, str(self.file)]
        elif patch:
            command = [patch, "--strip=1", "--forward", "--fuzz=0", "--silent"]
            command += [*flags, f"--input={self.file}"]
        else:
            raise PatchError(
                "nothing to apply a patch with",
                where="PATH",
                got="neither git nor patch",
                expected="one of the two",
                fix="install git or patch",
            )
        done = subprocess.run(
            command, cwd=scratch, env=_outside_of_git(scratch), capture_output=True, text=True
        )
        if done.returncode == 0:
            return None
        # one finding a line, below each other
        return "\n            ".join((done.stderr or done.stdout).strip().splitlines())


def _outside_of_git(scratch: str) -> dict[str, str]:
    # git must take the folder for what it is wherever temporary files are kept, and read no
    # settings: there is no HOME here either
    return {
        "PATH": os.defpath,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(Path(scratch).resolve().parent),
    }
