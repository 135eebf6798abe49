"""Opportunistic Expert Activation (arXiv 2511.02237) for SGLang.

Rooms, and the one direction in which they import (`core` <- `plugin` <- `cli`):
    core/             the algorithm and when it applies: torch and triton only, knows no host.
                      Start at routing.py, the specification; session.py is what a host calls
    plugin/           the host side: hooks on SGLang's own functions
    launch_server.py  `python -m sglang_oea.launch_server`, for releases without a plugin system
    cli.py            `sglang-oea check`, whose findings are in check.py

Importing this package imports neither torch nor sglang.
"""

from .core.version import __version__ as __version__
