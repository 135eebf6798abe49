"""A GLM-4-MoE model that SGLang really built, loaded by its `ModelRunner` with hooks in force."""

import copy

import pytest
import torch
from in_process import load_runner
from make_demo_model import cached

from sglang_oea.core.layer import Layer
from sglang_oea.core.model import moe_layers
from sglang_oea.core.scores import Router


def types() -> tuple[type, type]:
    """SGLang's classes of routers and of experts."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import TopK

    return TopK, FusedMoE


@pytest.fixture(scope="module")
def loaded(attached):
    """The runner, and the rerouter that the load hook made for it."""
    runner = load_runner(cached("glm4-moe", "tiny"))
    return runner, attached.session.rerouter


def test_router_of_a_built_glm4_moe_layer_is_sigmoid(loaded):
    """Glm4Moe leaves `scoring_func` at softmax, and SGLang scores it with sigmoid all the same.

    A router read by `scoring_func` alone would rank and weigh every GLM layer by softmax.
    """
    runner, _ = loaded
    for block in runner.model.model.layers[1:]:
        topk_config = block.mlp.topk.topk_config
        assert topk_config.scoring_func == "softmax"
        assert topk_config.use_grouped_topk
        router = Router.of(topk_config)
        assert router.scoring == "sigmoid"
        assert router.biased
        assert router.renormalize
        assert (router.num_expert_group, router.slots, router.shared_slots) == (1, 8, 0)
    assert [layer.why_not for layer in moe_layers(runner.model, *types()).values()] == [None, None]


def test_layers_are_found_by_sglang_number(loaded):
    """The first layer is dense: MoE layers are 1 and 2, each with a line of its own."""
    _, rerouter = loaded
    assert sorted(rerouter.layers) == [1, 2]
    assert [rerouter.index[i] for i in (1, 2)] == [0, 1]
    assert all(isinstance(layer, Layer) for layer in rerouter.layers.values())


def test_forward_of_the_model_is_watched(loaded):
    """The gate wraps the loaded model's own `forward` and keeps its signature."""
    runner, rerouter = loaded
    assert runner.model.forward.__wrapped__.__self__ is runner.model
    assert rerouter.gate.open_rows is None


def test_experts_without_a_router_of_their_own_count_as_missed(loaded):
    """A router fused into the model never calls `select_experts`; its layer must not vanish."""
    runner, _ = loaded
    block = copy.copy(runner.model.model.layers[1].mlp)
    block._modules = {name: m for name, m in block._modules.items() if name != "topk"}
    assert moe_layers(torch.nn.ModuleList([block]), *types()) == {
        1: Layer(None, "its router is fused into the model")
    }
