"""SGLang's own expert-distribution recorder counts what OEA says that it did."""

import pytest
import torch

from server.load import ROWS, TOKENS, TOP_K, counted, generate

pytestmark = pytest.mark.server


@pytest.mark.parametrize("k0", [3, 8])
def test_recorder_sees_the_rerouted_experts(oea, kind, workspace, k0):
    """T from the recorder's dump of the same decode steps equals OEA's counter, step for step."""
    oea.set_k0(k0)
    folder = workspace / f"{kind}-oea"
    known = set(folder.glob("*.pt"))

    def record():
        oea.post("/start_expert_distribution_record", {})
        generate(oea)
        oea.post("/stop_expert_distribution_record", {})
        oea.post("/dump_expert_distribution_record", {})

    _, counters = counted(oea, record)

    (dump,) = set(folder.glob("*.pt")) - known
    # [layers, experts] tokens, one such a forward
    passes = [
        entry["global_physical_count"] for entry in torch.load(dump, weights_only=False)["records"]
    ]
    moe = oea.oea()["layers"]["moe"]
    # a forward with as many tokens as requests is a decode step; prefill has whole prompts
    decode = [count for count in passes if count.sum() == ROWS * TOP_K * moe]
    assert len(decode) == TOKENS - 1
    assert len(decode) * moe == counters["calls"]
    assert sum((count > 0).sum().item() for count in decode) == counters["experts_after"]
    if k0 < TOP_K:
        assert counters["experts_after"] < counters["experts_before"]
