"""Opportunistic Expert Activation (arXiv 2511.02237) for SGLang.

Rooms, and the one direction of imports (`core` <- `plugin`, `core` <- `lab`, all <- `cli`):
    core/             the algorithm and when it applies: torch and triton only, imports no SGLang.
                      Start at routing.py, the specification; session.py is what a host calls
    plugin/           the host side: hooks on SGLang's own functions
    launch_server.py  `python -m sglang_oea.launch_server`, for releases without a plugin system
    patching/         core/ inside SGLang's own tree: `sglang-oea patch`
    lab/              what OEA costs in quality, offline: `sglang-oea eval` and `trace`
    demo/             a small trained model, to try and to measure all this on
    cli.py            the command line; `sglang-oea check` is in check.py

Importing this package imports neither torch nor sglang.
"""

from .core.version import __version__ as __version__
