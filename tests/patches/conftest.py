"""Whole trees of SGLang with their patch applied, made from `patches/` as it is now."""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from wheels import unpacked

from sglang_oea.patching import commands


@pytest.fixture(scope="session")
def patched(tmp_path_factory) -> Callable[[str], Path]:
    """Release -> the folder with its patched `sglang/`; what the patch does not touch are links."""

    @functools.cache
    def make(release: str) -> Path:
        tree = tmp_path_factory.mktemp("patched") / release
        shutil.copytree(unpacked(release), tree, copy_function=os.symlink)
        assert commands.run("apply", str(tree), release) == 0
        return tree

    return make
