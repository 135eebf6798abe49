"""The session of a patched SGLang: one a process, from this process's environment.

Imported by the patch alone; the plugin makes its own session.
"""

from .config import Config, Refusal, settings_or_stock
from .session import Session


def _refuse_trace(settings: Config) -> None:
    if settings.trace is not None:
        raise Refusal(
            "a patched SGLang cannot record router logits",
            where="environment of the server process",
            got=f"SGLANG_OEA_TRACE={settings.trace}",
            expected="SGLANG_OEA_TRACE unset, or OEA from its plugin",
            fix="reverse the patch and install the package beside SGLang, "
            "or unset SGLANG_OEA_TRACE",
        )


oea = Session(settings_or_stock(_refuse_trace))
