"""Runs a topk case on a host.

A host is SGLang's `topk` module, hooked or patched, with the session that reroutes in it. What a
host does is plain data, since a patched one runs in a process of its own.

Routing runs SGLang's own torch code. Where a case needs a branch that only CUDA takes, `_is_cuda`
is set for the call, and its one kernel is replaced by torch (`topk_kernels.py`).
"""

import dataclasses
import sys
import types

import pytest
import topk_kernels
import torch
from topk_cases import PACKING, Case

LAYER = 3


def observe(case: Case, topk, session, layer) -> dict:
    """What a host selects with the gate closed, and then with OEA.

    Args:
        topk: SGLang's module.
        session: the host's `Session`, with settings.
        layer: the module `layer` of the host's copy of core/.
    """
    config = _config(case, topk)
    rerouter = layer.Rerouter(session.settings, {LAYER: layer.Layer.of(config)}, "cpu")
    rerouter.set_k0(case.k0)
    session.rerouter = rerouter
    stock = _select(case, topk, config)
    # where SGLang counts the rows, the gate's own view is not asked
    valid = [True] * case.rows if case.counted else case.valid
    rerouter.gate.open_rows = torch.tensor(valid) if case.gate_open else None
    rerouted = _select(case, topk, config)
    return {
        "stock": stock,
        "rerouted": rerouted,
        "left_alone": rerouter.left_alone().get(LAYER, ""),
        "experts_after": rerouter.report()["experts_after"],
    }


def _config(case: Case, topk):
    """SGLang's `TopKConfig`, of whichever release."""
    of_release = {"num_fused_shared_experts": case.shared}
    if "shared_experts" in {field.name for field in dataclasses.fields(topk.TopKConfig)}:
        from sglang.srt.configs.shared_experts import SharedExpertsConfig

        of_release = {
            "shared_experts": SharedExpertsConfig(**of_release),
            "fused_gate_packed_ids": case.situation == "masking gate",
        }
    by_token = case.situation == "bias by token"
    # the models whose router is grouped with a bias leave scoring_func at its default
    defaulted = case.groups is not None and case.biased and not by_token
    groups, kept = case.groups or (None, None)
    return topk.TopKConfig(
        top_k=case.slots + case.shared,
        use_grouped_topk=case.groups is not None,
        num_expert_group=groups,
        topk_group=kept,
        renormalize=case.renormalize,
        correction_bias=None if by_token else case.bias,
        torch_native=case.situation not in ("softmax kernel", *PACKING),
        routed_scaling_factor=case.scaling,
        apply_routed_scaling_factor_on_output=case.folded,
        scoring_func="softmax" if defaulted else case.scoring,
        **of_release,
    )


def _select(case: Case, topk, config) -> dict:
    recorded: list = []
    captured: list = []

    class Recorder:
        def on_select_experts(self, topk_ids):
            recorded.append(topk_ids.tolist())

    class Capturer:
        # the ids' name differs by release
        def capture(self, layer_id, **ids):
            assert layer_id == LAYER
            captured.extend(tensor.tolist() for tensor in ids.values())

    names, modules = situation_of(case)
    names |= {
        "get_global_expert_distribution_recorder": Recorder,
        "get_global_experts_capturer": Capturer,
    }
    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        for name, value in names.items():
            patch.setattr(topk, name, value, raising=False)
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        hidden = torch.zeros(case.rows, 1)
        arguments = _arguments(case, topk)
        output = topk.select_experts(hidden, case.logits, config, layer_id=LAYER, **arguments)
    return {
        "ids": output.topk_ids.tolist(),
        "weights": output.topk_weights.tolist(),
        "dtypes": [str(output.topk_ids.dtype), str(output.topk_weights.dtype)],
        "packed": hasattr(output, "packed_topk_ids"),
        "recorded": recorded,
        "captured": captured,
    }


def _arguments(case: Case, topk) -> dict:
    """What the case gives `select_experts` besides."""
    arguments: dict = {}
    if case.counted:
        arguments["num_token_non_padded"] = torch.tensor(sum(case.valid))
    if case.situation == "bias by token":
        arguments["dynamic_expert_bias"] = case.bias
    if case.situation == "mapped":
        table = torch.tensor([case.physical(e) for e in range(case.experts)], dtype=torch.int32)
        once = torch.ones(case.experts, dtype=torch.int32)
        info = topk.ExpertLocationDispatchInfo("static", table, table[:, None], once, case.experts)
        arguments["expert_location_dispatch_info"] = info
    return arguments


def situation_of(case: Case) -> tuple[dict, dict]:
    """`(names of the topk module, modules)` that a case replaces, by its situation.

    - softmax kernel: the ungrouped router as CUDA and ROCm have it, around its kernel.
    - mapped: experts are placed otherwise. 0.5.18 maps on CUDA alone.
    - packed: the experimental router that writes a packed copy besides.
    - masking gate: the router of 0.5.23 that masks padding rows and packs.
    - bias by token: an argument alone.
    """
    on_cuda = {"_is_cuda": True}
    if case.situation == "softmax kernel":
        return {"topk_softmax": topk_kernels.topk_softmax}, {}
    if case.situation == "mapped":
        return on_cuda, {}
    if case.situation == "masking gate":
        return on_cuda, {"sglang.kernels.ops.moe.moe_fused_gate": topk_kernels}
    if case.situation == "packed":
        switch = types.SimpleNamespace(get=lambda: True)
        environ = types.SimpleNamespace(
            lora_envs=types.SimpleNamespace(SGLANG_OPT_LORA_FUSED_TOPK_PACK=switch)
        )
        modules = {
            "sglang.srt.lora.trtllm_lora_temp.environ": environ,
            # 0.5.18, 0.5.23
            "sglang.kernels.ops.moe.trtllm_lora_temp.topk_softmax_pack": topk_kernels,
            "sglang.kernels.ops.lora.moe.trtllm_lora_temp.topk_softmax_pack": topk_kernels,
        }
        return on_cuda | {"_SGLANG_EXPERIMENTAL_LORA_OPTI": True}, modules
    return {}, {}
