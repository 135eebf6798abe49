"""The plugin attached to this process's real SGLang, once: its registry has no way back."""

from collections.abc import Iterator

import pytest
import torch

from sglang_oea.core import config
from sglang_oea.core.layer import Layer, Rerouter
from sglang_oea.plugin import hooks

LAYER = 3


@pytest.fixture(scope="session")
def attached() -> hooks.Plugin:
    """Hooks registered and applied as SGLang's `load_plugins` does."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    host = hooks.attach(config.from_environment({"SGLANG_OEA_K0": "3"}))
    HookRegistry.apply_hooks()
    return host


@pytest.fixture
def host(attached: hooks.Plugin) -> Iterator[hooks.Plugin]:
    """The attached plugin as after a model load; without a rerouter until `reroute_with`."""
    attached.model_seen = True
    yield attached
    session = attached.session
    session.admitted, session.rerouter, session.runner = False, None, None
    attached.model_seen = False


@pytest.fixture
def reroute_with(host: hooks.Plugin):
    """A function that gives the plugin one layer, and opens the gate for `valid` rows."""

    def prepare(topk_config, valid: torch.Tensor, **settings: str) -> Rerouter:
        settings = config.from_environment({f"SGLANG_OEA_{k}": v for k, v in settings.items()})
        host.session.rerouter = Rerouter(settings, {LAYER: Layer.of(topk_config)}, "cpu")
        host.session.rerouter.gate.open_rows = valid
        return host.session.rerouter

    return prepare
