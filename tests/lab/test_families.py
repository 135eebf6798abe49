"""Which models can be evaluated: routers whose scoring is proven, and those that are refused."""

import pytest
import tiny_models
import torch

from sglang_oea.lab.errors import LabError
from sglang_oea.lab.evaluate import measure
from sglang_oea.lab.model import examine
from sglang_oea.lab.policies import Policy

# function, renormalised, with bias, groups
SCORINGS = {
    "glm4_moe": ("sigmoid", True, True, 1),
    "glm_moe_dsa": ("sigmoid", True, True, 1),
    "minimax_m2": ("sigmoid", True, True, 1),
    "deepseek_v3": ("sigmoid", True, True, 4),
    "deepseek_v2": ("softmax", False, False, 4),
    "qwen3_moe": ("softmax", True, False, 1),
    "mixtral": ("softmax", True, False, 1),
    "gpt_oss": ("softmax", True, False, 1),
    "olmoe": ("softmax", False, False, 1),
    "qwen2_moe": ("softmax", False, False, 1),
}


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_families(family):
    """Holds that each family's scoring is found, and that it is evaluated to the end."""
    subject = examine(tiny_models.build(family))
    found = {(s.function, s.renormalize, s.bias is not None, s.groups) for s in subject.scorings}
    assert found == {SCORINGS[family]}
    assert subject.experts in (8, 16) and subject.slots == 3
    found, _ = measure(subject, tiny_models.tokens(4, 8), 4, Policy.parse("oea:k0=1"))
    assert found.nats.isfinite().all() and (found.active >= 3).all()


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_moe"])
def test_half_precision(family):
    """Holds that a model in bfloat16, whose scores are full of ties, is understood too."""
    examine(tiny_models.build(family).to(torch.bfloat16))


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        # ranks by something else than its logits
        (
            "qwen3_moe",
            lambda logits, weights, ids: (logits, weights, (ids + 1) % 16),
            "other experts",
        ),
        # weighs by something else
        (
            "qwen3_moe",
            lambda logits, weights, ids: (logits, weights.flip(-1), ids),
            "weights differ",
        ),
        ("glm4_moe", lambda logits, weights, ids: (logits, weights**2, ids), "weights differ"),
        # hands out logits after something was done to them
        ("mixtral", lambda logits, weights, ids: (-logits, weights, ids), "other experts"),
        (
            "mixtral",
            lambda logits, weights, ids: (ids, weights, ids),
            "does not hand out its logits",
        ),
        ("mixtral", lambda logits, weights, ids: (logits[:, :4], weights, ids), "of 4 logits"),
    ],
)
def test_changed_router(family, change, said):
    """Holds that a router which does not do what its logits say is refused, the layer named."""
    model = tiny_models.build(family)
    router = model.model.layers[1].mlp.gate
    plain = router.forward
    router.forward = lambda *given: change(*plain(*given))
    with pytest.raises(LabError) as refusal:
        examine(model)
    assert said in str(refusal.value) and "model.layers.1.mlp" in str(refusal.value)


def test_changed_head():
    """Holds that logits which are more than the head's product are refused."""
    model = tiny_models.build("mixtral")
    plain = model.forward

    def capped(**given):
        output = plain(**given)
        output.logits = output.logits.tanh()
        return output

    model.forward = capped
    with pytest.raises(LabError, match="more than its head"):
        examine(model)


def test_dense_model():
    """Holds that a model without experts is refused by what it is."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    dense = Qwen3ForCausalLM(Qwen3Config(**tiny_models.COMMON, intermediate_size=32, head_dim=16))
    with pytest.raises(LabError) as refusal:
        examine(dense)
    assert "not a Mixture of Experts" in str(refusal.value)
    assert "Qwen3ForCausalLM" in str(refusal.value)


def test_router_out_of_reach():
    """Holds that experts whose router is not beside them are refused, the layer named."""
    model = tiny_models.build("mixtral")
    block = model.model.layers[0].mlp
    block.chooser = block.gate
    del block.gate
    with pytest.raises(LabError, match="router of a layer cannot be reached") as refusal:
        examine(model)
    assert "model.layers.0.mlp" in str(refusal.value)
