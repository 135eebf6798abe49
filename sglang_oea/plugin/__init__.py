"""The entry point that SGLang loads in each of its processes (group `sglang.srt.plugins`).

Standard library only until OEA is asked for. SGLang logs and forgets every exception that a plugin
raises, and then serves stock; so whatever goes wrong here becomes a `SystemExit`.
"""

from sglang_oea.core import config

GROUP, ENTRY_POINT = "sglang.srt.plugins", "oea"


def register() -> None:
    """Attach OEA to this process if `SGLANG_OEA_K0` asks for it; otherwise do nothing at all.

    Raises:
        SystemExit: it was asked for and cannot run (`SGLANG_OEA_STRICT=0`: logged, and stock is
            served).
    """
    config.settings_or_stock(_attach)


def _attach(settings: config.Config) -> None:
    try:
        from . import hooks

        hooks.attach(settings)
    except Exception as error:
        raise config.Refusal(
            "OEA could not be attached to SGLang",
            where="sglang_oea.plugin.register()",
            got=f"{type(error).__name__}: {error}",
            expected="a release of SGLang that `sglang-oea check` accepts",
            fix="run `sglang-oea check`; it names what does not fit",
        ) from error
