"""The session of a patched SGLang: one a process, from this process's environment.

Imported by the patch alone; the plugin makes its own session.
"""

from .config import Config, Refusal, from_environment, is_strict, refuse
from .session import Session


def _settings() -> Config | None:
    strict = True
    try:
        strict = is_strict()
        return from_environment()
    except Refusal as refusal:
        refuse(refusal, strict)
        return None


oea = Session(_settings())
