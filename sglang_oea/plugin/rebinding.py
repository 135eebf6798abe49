"""Hooks where SGLang has no `HookRegistry`: one function, replaced wherever it is bound."""

import functools
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

MARK = "_sglang_oea_hook"


def around(path: str, hook: Callable) -> None:
    """Make calls of `path` run `hook(original, *args, **kwargs)`, as `HookType.AROUND` does.

    A name that other modules have imported already is rebound there too. A second hook on the same
    function does nothing, so that no call is rerouted twice.

    Args:
        path: a function of a module, or a method of a class, by its dotted name.
    """
    original = pkgutil.resolve_name(path)
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(hooked, MARK, path)
    owner, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    setattr(owner, name, hooked)
    if isinstance(owner, ModuleType):
        for module in list(sys.modules.values()):
            # some modules compute their attributes: only what is stored can be a stale name
            for bound, value in list(getattr(module, "__dict__", {}).items()):
                if value is original:
                    setattr(module, bound, hooked)
