"""`python -m sglang_oea.launch_server`: SGLang's launcher, with OEA also where it has no plugins.

SGLang 0.5.9 and 0.5.10 have no plugin system. There this module attaches the hooks, in the launcher
and in every process that it spawns, since multiprocessing imports the main module again in each.
Where SGLang loads plugins this is `python -m sglang.launch_server` and nothing else.
"""

import importlib.metadata
import importlib.util
import runpy

from sglang_oea.core import config
from sglang_oea.plugin import ENTRY_POINT, GROUP, contract, register


def attach() -> None:
    """Attach the hooks to this process, where SGLang will not do it by itself.

    Raises:
        SystemExit: OEA was asked for and cannot run.
    """
    if importlib.util.find_spec("sglang") is None:
        raise SystemExit(
            "sglang_oea: SGLang is not installed for this Python; "
            "install it, or use the Python that it is installed for"
        )
    if not contract.has_plugin_system():
        register()
    elif not contract.carries_patch():
        found = importlib.metadata.entry_points(group=GROUP, name=ENTRY_POINT)
        if not found:
            config.settings_or_stock(_refuse_uninstalled)


def _refuse_uninstalled(settings: config.Config) -> None:
    raise config.Refusal(
        "SGLang cannot find the plugin",
        where=f"entry points of {GROUP}",
        got=f"no {ENTRY_POINT!r}: this package is on the path and not installed",
        expected="the package installed beside SGLang",
        fix="pip install --no-deps .",
    )


if __name__ in ("__main__", "__mp_main__"):
    attach()
if __name__ == "__main__":
    # not alter_sys: spawned processes must find this module as their main one
    runpy.run_module("sglang.launch_server", run_name="__main__")
