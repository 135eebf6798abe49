"""Stock `select_experts` of the installed SGLang, hooked: OEA in decode, stock elsewhere."""

import pytest
import torch

from plugin.conftest import LAYER
from plugin.routers import HIDDEN, ROUTERS, ROWS, expected, logits, topk_config

VALID = torch.tensor([row not in (3, ROWS - 2, ROWS - 1) for row in range(ROWS)])


def select(config, router_logits, **kwargs):
    """The hooked function, called as SGLang's `TopK` calls it."""
    from sglang.srt.layers.moe import topk

    hidden = torch.zeros(router_logits.shape[0], HIDDEN)
    return topk.select_experts(hidden, router_logits, config, layer_id=LAYER, **kwargs)


def same(left, right) -> bool:
    """Bit for bit, columns included."""
    return torch.equal(left.topk_ids, right.topk_ids) and torch.equal(
        left.topk_weights, right.topk_weights
    )


@pytest.mark.parametrize("k0", [1, 3, 8])
@pytest.mark.parametrize("name", ROUTERS)
def test_result_is_the_oracle_applied_to_stock(host, reroute_with, name, k0):
    """Each scoring function: the oracle on what stock chose, ids exactly, weights to 1e-5."""
    config, router_logits = topk_config(name), logits(seed=k0)
    stock = select(config, router_logits)
    reroute_with(config, VALID, K0=str(k0))

    got = select(config, router_logits)

    weights, ids = expected(stock, router_logits, config, k0, VALID)
    assert got.topk_ids.tolist() == ids
    # SGLang's own weights are float32 sums of 8, so the scale that is taken from them is no better
    torch.testing.assert_close(got.topk_weights, torch.tensor(weights), rtol=1e-5, atol=1e-6)
    assert got.topk_ids.dtype == stock.topk_ids.dtype
    assert k0 == 8 or not same(got, stock)


@pytest.mark.parametrize("name", ["glm-5: grouped with bias", "glm-5: scaling folded"])
def test_fused_shared_expert_is_left_where_it_is(host, reroute_with, name):
    """The last column, id N, is neither in the union nor in the weight mass."""
    config, router_logits = topk_config(name, shared=1), logits(seed=9)
    stock = select(config, router_logits)
    assert (stock.topk_ids[:, -1] == router_logits.shape[1]).all()
    rerouter = reroute_with(config, VALID, K0="3")

    got = select(config, router_logits)

    assert torch.equal(got.topk_ids[:, -1], stock.topk_ids[:, -1])
    assert torch.equal(got.topk_weights[:, -1], stock.topk_weights[:, -1])
    weights, ids = expected(stock, router_logits, config, 3, VALID)
    assert got.topk_ids[:, :-1].tolist() == ids
    torch.testing.assert_close(
        got.topk_weights[:, :-1], torch.tensor(weights), rtol=1e-5, atol=1e-6
    )
    # a union with id N in it would not fit N counters
    assert rerouter.report()["experts_after"] <= router_logits.shape[1]


@pytest.mark.parametrize("name", ROUTERS)
def test_stock_bit_for_bit_outside_decode_and_when_off(host, reroute_with, name):
    """A closed gate, k0 = 0 and a layer that nobody knows change nothing."""
    config, router_logits = topk_config(name), logits(seed=1)
    stock = select(config, router_logits)
    rerouter = reroute_with(config, VALID, K0="3")

    rerouter.gate.open_rows = None
    assert same(select(config, router_logits), stock)

    rerouter.gate.open_rows = VALID
    rerouter.set_k0(0)
    assert same(select(config, router_logits), stock)

    rerouter.set_k0(3)
    rerouter.layers.clear()
    assert same(select(config, router_logits), stock)


def test_post_processing_called_from_elsewhere_passes_through(host, reroute_with):
    """`mega_gate` and `vl_routing` call it by position, with other meanings, outside the region."""
    from sglang.srt.layers.moe import topk

    config, router_logits = topk_config("sigmoid"), logits(seed=2)
    reroute_with(config, VALID, K0="3")
    ids = torch.arange(ROWS * 8, dtype=torch.int32).view(ROWS, 8) % router_logits.shape[1]
    weights = torch.rand(ROWS, 8)

    got_ids, got_weights, _ = topk._post_process_topk_ids(
        ids.clone(), weights.clone(), config, router_logits, LAYER
    )

    assert torch.equal(got_ids, ids)
    assert torch.equal(got_weights, weights)


def test_padding_count_of_sglang_decides_and_masks(host, reroute_with):
    """Rows from `num_token_non_padded` on are not valid, and SGLang's own mask comes after OEA."""
    config, router_logits = topk_config("sigmoid"), logits(seed=3)
    real = ROWS - 5
    stock = select(config, router_logits)
    # the gate's own view says that all rows are real: SGLang's count overrules it
    reroute_with(config, torch.ones(ROWS, dtype=torch.bool), K0="2")

    got = select(config, router_logits, num_token_non_padded=torch.tensor(real))

    valid = torch.arange(ROWS) < real
    _, ids = expected(stock, router_logits, config, 2, valid)
    assert got.topk_ids[:real].tolist() == ids[:real]
    assert (got.topk_ids[real:] == -1).all()


def test_recorder_and_capture_see_rerouted_ids(host, reroute_with, monkeypatch):
    """Whatever consumes the ids inside `select_experts` gets the rerouted ones."""
    from sglang.srt.layers.moe import topk

    seen = []

    class Recorder:
        def on_select_experts(self, topk_ids):
            seen.append(topk_ids.clone())

    class Capturer:
        def capture(self, layer_id, topk_indices):
            seen.append(topk_indices.clone())

    monkeypatch.setattr(topk, "get_global_expert_distribution_recorder", Recorder)
    monkeypatch.setattr(topk, "get_global_experts_capturer", Capturer)
    config, router_logits = topk_config("glm-5: grouped with bias"), logits(seed=4)
    reroute_with(config, VALID, K0="2")

    got = select(config, router_logits)

    assert len(seen) == 2
    assert all(torch.equal(ids, got.topk_ids) for ids in seen)


def test_packed_ids_are_dropped_when_they_are_no_longer_true(host, reroute_with, monkeypatch):
    """`StandardTopKOutputPacked` holds a second copy of ids and weights, packed before OEA."""
    from sglang.srt.layers.moe import topk

    stock_function = topk.select_experts.__wrapped__

    def packing(original, *args, **kwargs):
        output = stock_function(*args, **kwargs)
        return topk.StandardTopKOutputPacked(*output, output.topk_ids.clone())

    config, router_logits = topk_config("sigmoid"), logits(seed=6)
    hidden = torch.zeros(ROWS, HIDDEN)
    rerouter = reroute_with(config, VALID, K0="2")

    def call():
        return host.select_experts(
            lambda *a, **k: packing(None, *a, **k), hidden, router_logits, config, layer_id=LAYER
        )

    assert type(call()) is topk.StandardTopKOutput
    rerouter.gate.open_rows = None
    assert type(call()) is topk.StandardTopKOutputPacked


def test_bias_that_differs_by_token_is_left_alone_and_named(host, reroute_with):
    """`dynamic_expert_bias` ranks by scores that OEA is not given."""
    config, router_logits = topk_config("sigmoid with bias"), logits(seed=7)
    per_token = torch.randn(ROWS, router_logits.shape[1])
    stock = select(config, router_logits, dynamic_expert_bias=per_token)
    rerouter = reroute_with(config, VALID, K0="2")

    got = select(config, router_logits, dynamic_expert_bias=per_token)

    assert same(got, stock)
    assert rerouter.report()["layers"] == {"moe": 1, "rerouted": 0}
    assert "differs by token" in rerouter.left_alone()[LAYER]


def test_custom_routing_function_is_left_alone(host, reroute_with):
    """Its scores are not known, so neither is its ranking."""

    def first_experts(hidden_states, gating_output, topk, renormalize):
        rows = gating_output.shape[0]
        return torch.full((rows, topk), 1 / topk), torch.arange(topk).repeat(rows, 1)

    config = topk_config("sigmoid", custom_routing_function=first_experts)
    router_logits = logits(seed=8)
    rerouter = reroute_with(config, VALID, K0="2")

    assert (select(config, router_logits).topk_ids == torch.arange(8)).all()
    assert "custom routing function" in rerouter.left_alone()[LAYER]


@pytest.mark.parametrize("open_gate", [True, False])
def test_traces_without_a_graph_break(host, reroute_with, open_gate):
    """`torch.compile(fullgraph=True)` of a caller, in and out of decode."""
    config, router_logits = topk_config("glm-5: grouped with bias"), logits(seed=10)
    reroute_with(config, VALID if open_gate else None, K0="2")
    eager = select(config, router_logits)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda router_logits: select(config, router_logits), fullgraph=True, backend="eager"
    )

    assert same(compiled(router_logits), eager)
