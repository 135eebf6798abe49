"""`sglang-oea patch`: apply, reverse, check, status."""

import sys

from .patch import Patch
from .tree import PatchError, Tree


def run(action: str, target: str | None, release: str | None) -> int:
    """Do what `sglang-oea patch ACTION` asks for; the exit status."""
    try:
        tree = Tree.find(target)
        patch = Patch.choose(tree, release)
        return _ACTIONS[action](tree, patch)
    except PatchError as error:
        print(error, file=sys.stderr)
        return 1


def _apply(tree: Tree, patch: Patch) -> int:
    _refuse_unless(patch.state(tree), "applies", tree, patch)
    tree.write(patch.tried(tree.read(patch.paths)).files)
    print(f"applied {patch.file.name} to {tree.root}; SGLANG_OEA_K0 turns it on")
    return 0


def _reverse(tree: Tree, patch: Patch) -> int:
    _refuse_unless(patch.state(tree), "applied", tree, patch)
    tree.write(patch.tried(tree.read(patch.paths), reverse=True).files)
    print(f"took {patch.file.name} out of {tree.root}")
    return 0


def _check(tree: Tree, patch: Patch) -> int:
    _refuse_unless(patch.state(tree), "applies", tree, patch)
    print(f"{patch.file.name} applies to {tree.root}")
    return 0


def _status(tree: Tree, patch: Patch) -> int:
    state = patch.state(tree)
    known = {"applied": "is applied to", "applies": "is not applied to, and would apply to"}
    if state in known:
        print(f"{patch.file.name} {known[state]} {tree.root}")
    else:
        print(f"{patch.file.name} is not applied to, and does not fit {tree.root}:\n  {state}")
    return 0


_ACTIONS = {"apply": _apply, "reverse": _reverse, "check": _check, "status": _status}


def _refuse_unless(state: str, wanted: str, tree: Tree, patch: Patch) -> None:
    if state == wanted:
        return
    if state == "applied":
        what, fix = "the patch is applied already", "nothing is left to do"
    elif state == "applies":
        what, fix = "the patch is not applied", "nothing is left to do"
    else:
        what = "this tree is not as the patch expects it"
        fix = "restore these files, or choose another release with --version"
    raise PatchError(
        what,
        where=tree.root,
        got=state,
        expected=f"a tree of SGLang {patch.release} that {patch.file.name} "
        + ("was applied to" if wanted == "applied" else "can be applied to"),
        fix=fix,
    )
