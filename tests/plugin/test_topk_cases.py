"""The topk cases on the plugin: SGLang as it is installed, hooked."""

import pytest
from topk_cases import CASES
from topk_hosts import observe
from topk_verdict import verify

from sglang_oea.core import layer

RELEASE = "0.5.23"


@pytest.mark.parametrize(
    "case", [case for case in CASES if RELEASE in case.releases], ids=lambda case: case.name
)
def test_case(host, case):
    """Holds that the plugin selects what the oracle makes of the router's formula."""
    from sglang.srt.layers.moe import topk

    verify(case, RELEASE, observe(case, topk, host.session, layer))
