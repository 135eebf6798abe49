"""The session of a patched SGLang: one a process, from this process's environment.

Imported by the patch alone; the plugin makes its own session.
"""

from .config import Config, Refusal, from_environment, is_strict, refuse
from .session import Session


def _settings() -> Config | None:
    strict = True
    try:
        strict = is_strict()
        settings = from_environment()
        if settings is not None and settings.trace is not None:
            raise _cannot_record(settings.trace)
        return settings
    except Refusal as refusal:
        refuse(refusal, strict)
        return None


def _cannot_record(folder: str) -> Refusal:
    return Refusal(
        "a patched SGLang cannot record router logits",
        where="environment of the server process",
        got=f"SGLANG_OEA_TRACE={folder}",
        expected="SGLANG_OEA_TRACE unset, or OEA from its plugin",
        fix="reverse the patch and install the package beside SGLang, or unset SGLANG_OEA_TRACE",
    )


oea = Session(_settings())
