"""The session of a patched SGLang: what its environment makes of it."""

import pytest
from stubs import assert_refusal

from sglang_oea.core import active
from sglang_oea.core.config import Refusal, settings_or_stock


@pytest.fixture
def environ(monkeypatch):
    """A function that sets `SGLANG_OEA_*` variables of this process."""

    def put(**settings: str) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"SGLANG_OEA_{name}", value)

    return put


def test_off_unless_asked_for(environ):
    """Holds that a patched SGLang is stock without the variable, whatever else is set."""
    assert active.oea.settings is None
    environ(TRACE="folder")
    assert settings_or_stock(active._refuse_trace) is None


def test_trace_is_refused_with_the_way_to_it(environ, caplog):
    """Holds that a patched SGLang, which has no recorder, never runs as if it recorded."""
    environ(K0="4", TRACE="folder")
    with pytest.raises(Refusal) as refusal:
        settings_or_stock(active._refuse_trace)
    assert_refusal(refusal.value, "SGLANG_OEA_TRACE=folder", "plugin")
    environ(STRICT="0")
    assert settings_or_stock(active._refuse_trace) is None
    assert "stock SGLang is served" in caplog.text
