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
    attached.rerouter, attached.runner, attached.model_seen = None, None, False


@pytest.fixture
def reroute_with(host: hooks.Plugin):
    """A function that gives the plugin one layer, and opens the gate for `valid` rows."""

    def prepare(topk_config, valid: torch.Tensor, **settings: str) -> Rerouter:
        settings = config.from_environment({f"SGLANG_OEA_{k}": v for k, v in settings.items()})
        host.rerouter = Rerouter(settings, {LAYER: Layer.of(topk_config)}, "cpu", "test")
        host.rerouter.gate.open_rows = valid
        return host.rerouter

    return prepare
