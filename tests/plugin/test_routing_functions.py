"""The place of 0.5.9, which has no function after the top-k: the end of a routing function."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from plugin.launches import STAND_IN
from plugin.routers import EXPERTS, HIDDEN, ROWS, SLOTS, bias, expected, logits
from sglang_oea.core import config
from sglang_oea.core.layer import Layer, Rerouter
from sglang_oea.plugin import contract, hooks, rebinding

LAYER = 3
VALID = torch.arange(ROWS) % 7 != 3
GROUPED = dict(use_grouped_topk=True, num_expert_group=8, topk_group=4)
# which branch of select_experts a layer takes
ROUTERS = {
    "fused_topk": {},
    "fused_topk_native": dict(torch_native=True, scoring_func="sigmoid"),
    "grouped_topk": GROUPED,
    "biased_grouped_topk": GROUPED | dict(correction_bias=bias()),
}


@pytest.fixture
def topk(monkeypatch) -> ModuleType:
    """`topk.py` of the stand-in, under a name of its own: SGLang may be loaded here as well."""
    path = STAND_IN / "sglang/srt/layers/moe/topk.py"
    spec = importlib.util.spec_from_file_location("topk_0_5_9", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugin(topk, monkeypatch) -> hooks.Plugin:
    """A plugin with its hooks in that module, as `attach` puts them into 0.5.9."""
    paths = {name: f"{topk.__name__}.{name}" for name in ("select_experts", *ROUTERS)}
    monkeypatch.setattr(contract, "_TOPK", topk.__name__)
    monkeypatch.setattr(contract, "SELECT_EXPERTS", paths["select_experts"])
    monkeypatch.setattr(contract, "hooked", lambda: tuple(paths.values()))
    assert not contract.has_post_process()
    made = hooks.Plugin(config.from_environment({"SGLANG_OEA_K0": "3"}))
    made.model_seen = True
    for name, path in paths.items():
        is_place = name in ROUTERS
        rebinding.around(path, made.routing_function if is_place else made.select_experts)
    return made


@pytest.fixture
def serve(plugin, topk):
    """A function that gives the plugin one layer of this router and opens the gate."""

    def prepare(router: str, valid: torch.Tensor = VALID) -> SimpleNamespace:
        topk_config = topk.TopKConfig(SLOTS, **ROUTERS[router])
        settings = plugin.session.settings
        rerouter = Rerouter(settings, {LAYER: Layer.of(topk_config)}, "cpu")
        rerouter.gate.open_rows = valid
        plugin.session.rerouter = rerouter
        return SimpleNamespace(config=topk_config, rerouter=rerouter)

    return prepare


def select(topk: ModuleType, topk_config, router_logits: torch.Tensor, **more):
    """As `TopK.forward` calls it."""
    hidden = torch.zeros(router_logits.shape[0], HIDDEN)
    return topk.select_experts(
        hidden_states=hidden,
        router_logits=router_logits,
        topk_config=topk_config,
        layer_id=LAYER,
        **more,
    )


def stock_of(topk: ModuleType, rerouter: Rerouter, *args, **more):
    """The same selection while nothing is to be rerouted."""
    opened, rerouter.gate.open_rows = rerouter.gate.open_rows, None
    try:
        return select(topk, *args, **more)
    finally:
        rerouter.gate.open_rows = opened


def assert_same(got, stock) -> None:
    """Bit for bit, columns included."""
    assert torch.equal(got.topk_ids, stock.topk_ids)
    assert torch.equal(got.topk_weights, stock.topk_weights)


@pytest.mark.parametrize("router", ROUTERS)
def test_result_is_the_oracle_applied_to_stock(router, topk, serve):
    """Holds for each branch that it is rerouted, once, before anything else sees the ids."""
    served, router_logits = serve(router), logits(seed=1)
    stock = stock_of(topk, served.rerouter, served.config, router_logits)
    topk.recorded.clear()

    got = select(topk, served.config, router_logits)

    weights, ids = expected(stock, router_logits, served.config, 3, VALID)
    assert got.topk_ids.tolist() == ids != stock.topk_ids.tolist()
    torch.testing.assert_close(got.topk_weights, torch.tensor(weights), rtol=1e-5, atol=1e-6)
    assert served.rerouter.report()["calls"] == 1
    assert len(topk.recorded) == 1 and topk.recorded[0].tolist() == ids


def test_routing_function_within_a_routing_function(topk, serve, plugin, monkeypatch):
    """Holds that one which calls another is rerouted once, after the outer one: the inner ids are
    not what the layer gets.
    """
    served, router_logits = serve("fused_topk"), logits(seed=2)
    native = topk.fused_topk_native

    def outer(**arguments):
        del arguments["num_token_non_padded"], arguments["expert_location_dispatch_info"]
        weights, ids = native(**arguments)
        # something of its own: the other way round
        return weights.flip(-1), ids.flip(-1)

    assert hasattr(native, rebinding.MARK)
    monkeypatch.setattr(topk, "fused_topk", outer)
    stock = stock_of(topk, served.rerouter, served.config, router_logits)
    rebinding.around(f"{topk.__name__}.fused_topk", plugin.routing_function)

    got = select(topk, served.config, router_logits)

    _, ids = expected(stock, router_logits, served.config, 3, VALID)
    assert got.topk_ids.tolist() == ids
    assert served.rerouter.report()["calls"] == 1


def test_routing_function_called_from_elsewhere(topk, serve):
    """Holds that only `select_experts` is rerouted: others have no layer and no config."""
    served, router_logits = serve("fused_topk"), logits(seed=3)
    arguments = (torch.zeros(ROWS, HIDDEN), router_logits, SLOTS, True)
    weights, ids = topk.fused_topk(*arguments)
    stock_weights, stock_ids = topk.fused_topk.__wrapped__(*arguments)
    assert torch.equal(ids, stock_ids) and torch.equal(weights, stock_weights)
    # and the one that select_experts calls afterwards is
    select(topk, served.config, router_logits)
    assert served.rerouter.report()["calls"] == 1
    assert torch.equal(topk.fused_topk(*arguments)[1], stock_ids)


def test_error_closes_the_region(topk, serve, plugin):
    """Holds that a routing function that fails does not leave the next call in the region."""
    served, router_logits = serve("biased_grouped_topk"), logits(seed=4)
    served.config.num_expert_group = 7
    with pytest.raises(RuntimeError):
        select(topk, served.config, router_logits)
    assert plugin.selecting is None
    assert served.rerouter.report()["calls"] == 0


def test_mapped_layer_is_left_alone_and_named(topk, serve):
    """Holds that physical ids are not taken for logical ones: 0.5.9 maps in the routing function.

    With an expert mapping (EPLB, redundant experts) the ids that come back are of another
    numbering than the router's scores.
    """
    served, router_logits = serve("biased_grouped_topk"), logits(seed=5)
    mapping = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(0))
    arguments = dict(expert_location_dispatch_info=mapping)
    stock = stock_of(topk, served.rerouter, served.config, router_logits, **arguments)

    got = select(topk, served.config, router_logits, **arguments)

    assert_same(got, stock)
    assert served.rerouter.left_alone() == {
        LAYER: "its routing function maps logical to physical experts"
    }
    assert served.rerouter.report()["layers"] == {"moe": 1, "rerouted": 0}


def test_custom_routing_function_is_left_alone(topk, serve):
    """Holds that a function of the model's own, which is not hooked, leaves no region open for
    a routing function that somebody calls later.
    """
    served, router_logits = serve("fused_topk"), logits(seed=6)

    def first_experts(hidden_states, gating_output, topk, renormalize):
        rows = gating_output.shape[0]
        return torch.full((rows, topk), 1 / topk), torch.arange(topk).repeat(rows, 1)

    custom = topk.TopKConfig(SLOTS, custom_routing_function=first_experts)
    assert (select(topk, custom, router_logits).topk_ids == torch.arange(SLOTS)).all()
    topk.fused_topk(torch.zeros(ROWS, HIDDEN), router_logits, SLOTS, True)
    assert served.rerouter.report()["calls"] == 0


@pytest.mark.parametrize("router", ["fused_topk", "grouped_topk", "biased_grouped_topk"])
def test_padding_count_of_sglang_decides(router, topk, serve):
    """Holds that rows which the routing function has masked with -1 activate nothing new."""
    served = serve(router, valid=torch.ones(ROWS, dtype=torch.bool))
    router_logits, real = logits(seed=7), ROWS - 5
    stock = stock_of(topk, served.rerouter, served.config, router_logits)
    arguments = dict(num_token_non_padded=torch.tensor(real))

    got = select(topk, served.config, router_logits, **arguments)

    _, ids = expected(stock, router_logits, served.config, 3, torch.arange(ROWS) < real)
    assert got.topk_ids[:real].tolist() == ids[:real]
    assert set(got.topk_ids[real:].flatten().tolist()) <= set(ids[0])
    assert (got.topk_weights[real:] == 0).all()
    assert served.rerouter.report()["rows"] == real


@pytest.mark.parametrize("router", ROUTERS)
def test_stock_bit_for_bit_where_nothing_applies(router, topk, serve):
    """Holds that a live 0 and a layer that nobody knows change nothing."""
    served, router_logits = serve(router), logits(seed=8)
    stock = stock_of(topk, served.rerouter, served.config, router_logits)
    served.rerouter.set_k0(0)
    assert_same(select(topk, served.config, router_logits), stock)
    served.rerouter.set_k0(3)
    served.rerouter.layers.clear()
    assert_same(select(topk, served.config, router_logits), stock)
