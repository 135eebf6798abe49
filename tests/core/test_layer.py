"""`Rerouter.reroute_topk()`: what it hands to the algorithm, and what it puts back together."""

import pytest
import torch
from stubs import LOGITS, TopKConfig, is_untouched, make_config, make_rerouter, open_gate, two_rows


def test_two_rows_by_hand():
    """Holds the whole step on numbers: ids, weights at the old sum, dtypes, counters."""
    case, rerouter = two_rows(), make_rerouter(make_config("1"))
    open_gate(rerouter, True, True)
    weights, ids = case.through(rerouter)
    assert ids.tolist() == [[0, 6], [6, 0]] and ids.dtype == torch.int32
    gate = LOGITS.softmax(-1)[0, [0, 6]]
    torch.testing.assert_close(weights[0], gate / gate.sum())
    assert torch.equal(weights[1], case.weights[1])
    assert rerouter.stats.read()[1] == {
        "calls": 1,
        "rows": 2,
        "experts_before": 3,
        "experts_after": 2,
        "slots_rerouted": 1,
    }


def test_shared_columns():
    """Holds that shared experts' columns come back bit for bit, outside the union and the mass."""
    config = TopKConfig(top_k=3, num_fused_shared_experts=1)
    case = two_rows()
    shared_ids = torch.tensor([[6], [1]], dtype=torch.int32)
    shared_weights = torch.tensor([[0.9], [0.4]])
    # row 0 would take 1 of its own at this k0, were row 1's shared id 1 in the union
    case.config, case.ids = config, torch.cat([case.ids, shared_ids], -1)
    case.weights = torch.cat([case.weights, shared_weights], -1)
    rerouter = make_rerouter(make_config("1"), {0: config})
    open_gate(rerouter, True, True)
    weights, ids = case.through(rerouter)
    assert ids.tolist() == [[0, 6, 6], [6, 0, 1]]
    assert torch.equal(weights[:, 2:], shared_weights)
    torch.testing.assert_close(weights[:, :2].sum(-1), torch.ones(2))
    assert rerouter.stats.read()[1]["experts_before"] == 3


@pytest.mark.parametrize("count", [torch.tensor(1), torch.tensor([1], dtype=torch.int32)])
def test_num_token_non_padded_decides(count):
    """Holds that SGLang's own count of real rows goes before `out_cache_loc`."""
    case, rerouter = two_rows(), make_rerouter(make_config("1"))
    open_gate(rerouter, True, True)
    weights, ids = case.through(rerouter, count=count)
    # one real row is stock routing, padding takes its experts at weight 0
    assert ids.tolist() == [[0, 1], [0, 1]]
    assert weights[1].tolist() == [0, 0] and torch.equal(weights[0], case.weights[0])
    assert rerouter.stats.read()[1]["rows"] == 1
    # rows that were gathered from elsewhere, and whose count is known, are rerouted
    open_gate(rerouter, True, True, True)
    assert not is_untouched(case, case.through(rerouter, count=count))


def test_max_rank_reaches_the_algorithm():
    """Holds that SGLANG_OEA_MAX_RANK limits what is piggybacked."""
    # expert 6 ranks 7th in row 0: lower ids go first on equal scores
    for max_rank, row in ((None, [0, 6]), (7, [0, 6]), (6, [0, 1]), (2, [0, 1])):
        rerouter = make_rerouter(make_config("1", max_rank=max_rank))
        open_gate(rerouter, True, True)
        assert two_rows().through(rerouter)[1][0].tolist() == row
