"""`sglang-oea check --model`: what it reads from a checkpoint's `config.json`."""

import json

import pytest

from sglang_oea import check, cli
from sglang_oea.plugin import contract

GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
GLM5 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
DENSE = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}


@pytest.fixture(autouse=True)
def off(monkeypatch):
    """OEA is off until a test sets a k0."""
    monkeypatch.delenv("SGLANG_OEA_K0", raising=False)


def model_lines(tmp_path, described) -> list[check.Line]:
    """What is said of a checkpoint with this `config.json`."""
    text = described if isinstance(described, str) else json.dumps(described)
    (tmp_path / "config.json").write_text(text)
    return list(check.checkpoint(tmp_path))


def verdicts(lines) -> list[tuple[str, str]]:
    """Verdict and subject of each line."""
    return [(line.verdict, line.subject) for line in lines]


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (GLM, ("Glm4MoeForCausalLM", "128 experts, top-8, 1 shared", "1 group")),
        (GLM5, ("GlmMoeDsa", "256 experts, top-8, 1 shared", "gate sigmoid", "1 group")),
        (QWEN, ("Qwen3Moe", "128 experts, top-8, 0 shared")),
        ({"text_config": QWEN, "architectures": ["Vision"]}, ("128 experts",)),
        ({**GLM, "num_experts": None, "n_group": 8}, ("128 experts", "8 group")),
    ],
)
def test_moe_checkpoints(tmp_path, described, said):
    """Holds that the routers of GLM-4, GLM-5 and Qwen3 are recognised as ones to reroute."""
    lines = model_lines(tmp_path, described)
    assert verdicts(lines) == [("ok", "model"), ("ok", "layers"), ("ok", "kernel")]
    for words in said:
        assert words in lines[0].found


@pytest.mark.parametrize(
    ("described", "subject"),
    [
        (DENSE, "model"),
        ({**DENSE, "num_experts": 0, "num_experts_per_tok": 2}, "model"),
        ({**GLM5, "scoring_func": "tanh"}, "layers"),
        ("{", "model"),
    ],
)
def test_checkpoints_that_fail(tmp_path, described, subject):
    """Holds that a dense model, an unknown gate and a broken config.json fail in one line."""
    fails = [line for line in model_lines(tmp_path, described) if line.verdict == "FAIL"]
    assert [line.subject for line in fails] == [subject] and fails[0].fix


def test_missing_config(tmp_path, monkeypatch, capsys):
    """Holds that a folder without config.json fails, naming it, and exits 1."""
    monkeypatch.setattr(contract, "CONTRACT", ())
    assert cli.main(["check", "--model", str(tmp_path / "nowhere")]) == 1
    assert f"[FAIL] model: {tmp_path / 'nowhere'}" in capsys.readouterr().out


@pytest.mark.parametrize(("k0", "warned"), [("7", False), ("8", True), ("1:8", False)])
def test_k0_of_a_checkpoint(tmp_path, monkeypatch, k0, warned):
    """Holds that a k0 of at least K, which is stock routing, is warned of."""
    monkeypatch.setenv("SGLANG_OEA_K0", k0)
    assert (("warn", "k0") in verdicts(model_lines(tmp_path, GLM5))) is warned


def test_hash_layers(tmp_path):
    """Holds that layers that route by hash are said to stay stock."""
    lines = model_lines(tmp_path, {**GLM5, "num_hash_layers": 3})
    assert lines[1].verdict == "warn" and "first 3 MoE layers" in lines[1].found


@pytest.mark.parametrize(
    ("described", "verdict", "named"),
    [
        (GLM5, "ok", "one Triton launch"),
        (QWEN, "ok", "one Triton launch"),
        (GLM5 | {"n_group": 8, "topk_group": 4}, "ok", "one Triton launch"),
        (GLM5 | {"n_routed_experts": 160, "n_group": 8}, "warn", "power of two"),
        (GLM5 | {"n_routed_experts": 2048}, "warn", "1024 experts"),
    ],
)
def test_kernel_or_plain_torch(tmp_path, described, verdict, named):
    """Holds that a model whose layers the kernel does not take is told so before it is served."""
    line = next(line for line in model_lines(tmp_path, described) if line.subject == "kernel")
    assert line.verdict == verdict and named in line.found
