"""What the launchers would start: OEA and stock, graph sizes, what the caller changes."""

import json
import os
import shlex
import subprocess

import pytest
from launchers import GLM5, QWEN3, RELEASES, SCRIPTS, dry_run, run

THIRD = """#!/usr/bin/env bash
# Serves GLM-4.5-Air in FP8 on two GPUs.
set -euo pipefail
source {recipe}
title='GLM-4.5-Air in FP8 on two GPUs'
model=zai-org/GLM-4.5-Air-FP8
mtp_model=zai-org/GLM-4.5-Air-FP8
recipe() {{
  flag --tp-size 2 'the weights take more than one GPU'
  flag --kv-cache-dtype bfloat16 'said outright'
}}
launch "$@"
"""


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(**config)`: the path of a folder with this `config.json`, and a space in it."""

    def folder(**config) -> str:
        made = tmp_path / "a checkpoint"
        made.mkdir()
        (made / "config.json").write_text(json.dumps(config))
        return str(made)

    return folder


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("arguments", [(GLM5,), (GLM5, "--mtp"), (QWEN3,)])
def test_stock_and_oea_differ_by_one_variable(arguments, release):
    """Holds that an A/B measures OEA and nothing else; stock has no k0 whatever the shell has."""
    stock = dry_run(*arguments, release=release)
    oea = dry_run(*arguments, "--k0", "4", release=release)
    changed = [(a, b) for a, b in zip(stock.text.split("\n"), oea.text.split("\n"), strict=True)]
    changed = [(a.split("#")[0].split(), b.split("#")[0].split()) for a, b in changed if a != b]
    assert changed == [(["-u", "SGLANG_OEA_K0"], ["SGLANG_OEA_K0=4"])]


def test_a_k0_of_the_shell_is_not_passed_on():
    """Holds that a forgotten export cannot turn a stock baseline into OEA unnoticed."""
    done = run(QWEN3, "--dry-run", "--sglang-version", "0.5.23", SGLANG_OEA_K0="3")
    assert "-u SGLANG_OEA_K0" in done.stdout and "SGLANG_OEA_K0=" not in done.stdout
    assert "SGLANG_OEA_K0=3 is not passed on" in done.stderr


def test_module():
    """Holds that OEA gets in where SGLang loads no plugins, stock through the same door."""
    for k0 in ((), ("--k0", "4")):
        assert dry_run(GLM5, *k0, release="0.5.9").module == "sglang_oea.launch_server"
        assert dry_run(GLM5, *k0, release="0.5.18").module == "sglang.launch_server"
        assert dry_run(GLM5, *k0, release="0.5.23").module == "sglang.launch_server"


@pytest.mark.parametrize(
    ("mtp", "limit", "beyond_16"),
    [
        ((), 64, [24, 32, 40, 48, 56, 64]),
        ((), 8, []),
        ((), 30, [24, 30]),
        (("--mtp",), 34, [18, 20, 22, 24, 26, 28, 30, 32, 34]),
        (("--mtp",), 48, [18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48]),
    ],
)
def test_captured_batches(mtp, limit, beyond_16):
    """Holds that each batch up to 16 has a graph of its own, and the largest batch has one."""
    for release in RELEASES:
        flag = "--cuda-graph-bs" if release == "0.5.9" else "--cuda-graph-bs-decode"
        printed = dry_run(GLM5, *mtp, "--max-running", str(limit), release=release)
        expected = [*range(1, min(limit, 16) + 1), *beyond_16]
        assert printed.value(flag) == [str(size) for size in expected]
        assert printed.value("--max-running-requests") == [str(limit)]


def test_large_batches_are_captured_in_coarser_steps():
    """Holds that graphs stay few where a batch has every expert anyway."""
    sizes = dry_run(GLM5, "--max-running", "300").value("--cuda-graph-bs-decode")
    assert sizes[-5:] == ["248", "256", "272", "288", "300"] and len(sizes) == 49


def test_attention():
    """Holds the path for each release and for MTP, with a KV dtype that is never left to auto.

    And that DeepGEMM is switched off on 0.5.9 alone, where it takes SM120 for SM100.
    """
    dense, native = ["flashinfer", "bf16"], ["dsa", "fp8_e4m3"]
    for release, options, expected in [
        ("0.5.9", (), dense),
        ("0.5.18", (), native),
        ("0.5.23", (), native),
        ("0.5.23", ("--dense",), dense),
        ("0.5.23", ("--mtp",), dense),
    ]:
        printed = dry_run(GLM5, *options, release=release)
        found = printed.value("--attention-backend") + printed.value("--kv-cache-dtype")
        assert found == expected, (release, options)
        deepgemm = printed.variables.get("SGLANG_ENABLE_JIT_DEEPGEMM")
        # newer releases know SM120: their DeepGEMM is left to them
        assert deepgemm == ("0" if release == "0.5.9" else None)


def test_mtp():
    """Holds that MTP comes with a checkpoint that has it and with OEA in verification."""
    for release in RELEASES:
        printed = dry_run(GLM5, "--mtp", release=release)
        assert printed.value("--model-path") == ["festr2/GLM-5-NVFP4-MTP"]
        assert printed.variables["SGLANG_OEA_MODES"] == "decode,verify"
        spec_v2 = printed.variables.get("SGLANG_ENABLE_SPEC_V2")
        assert spec_v2 == ("True" if release == "0.5.9" else None)
    assert "SGLANG_OEA_MODES" not in dry_run(GLM5).variables


def test_a_checkpoint_decides(checkpoint):
    """Holds that quantisation and shared experts follow the folder's own config."""
    excluding = {"quant_algo": "NVFP4", "ignore": ["model.layers.3.mlp.shared_experts*"]}
    folder = checkpoint(quantization_config=excluding)
    printed = dry_run(GLM5, "--model", folder)
    assert printed.value("--model-path") == [folder]
    assert printed.value("--quantization") == ["modelopt_fp4"]
    assert "--disable-shared-experts-fusion" in printed.flags


def test_a_bf16_checkpoint_is_not_called_nvfp4(checkpoint):
    """Holds that a folder that is not quantised is not served as if it were."""
    flags = dry_run(GLM5, "--model", checkpoint(n_routed_experts=256)).flags
    assert not {"--quantization", "--moe-runner-backend", "--fp4-gemm-backend"} & set(flags)
    assert "--disable-shared-experts-fusion" not in flags


def test_the_caller_wins():
    """Holds that flags after -- are given once, --without leaves out, and set variables stay."""
    printed = dry_run(
        *(GLM5, "--without", "--watchdog-timeout", "--without=--chunked-prefill-size"),
        *("--without", "--tp"),
        *("--", "--mem-fraction-static=0.8", "--json-model-override-args", '{"a": "it\'s"}'),
        *("--page-size", "32", "--enable-metrics"),
        NCCL_P2P_LEVEL="PHB",
    )
    left_out = {"--watchdog-timeout", "--chunked-prefill-size", "--tp-size"}
    assert not left_out & set(printed.flags)
    assert "--mem-fraction-static=0.8" in printed.flags
    assert "--mem-fraction-static" not in printed.flags
    assert printed.value("--json-model-override-args") == ['{"a": "it\'s"}']
    assert printed.value("--page-size") == ["32"]
    assert printed.variables["NCCL_P2P_LEVEL"] == "PHB"
    for text in ("--mem-fraction-static=0.8", "--page-size 32", "NCCL_P2P_LEVEL=PHB"):
        (line,) = [line for line in printed.text.splitlines() if text in line]
        assert "# yours" in line and "recipe" in line


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("bound", ["bs", "bs-decode", "max-bs", "max-bs-decode"])
def test_captured_batches_of_the_caller(bound, release):
    """Holds that any flag for them replaces the list, beside which a largest one says nothing."""
    flag = f"--cuda-graph-{bound}"
    for given in ([flag, "32"], [f"{flag}=32"]):
        flags = dry_run(GLM5, "--", *given, release=release).flags
        assert [word for word in flags if word.startswith("--cuda-graph")] == given[:1]
    flags = dry_run(GLM5, "--without", flag, release=release).flags
    assert not [word for word in flags if word.startswith("--cuda-graph")]


def test_code_of_a_checkpoint_is_not_run_unless_asked():
    """Holds that the recipe trusts no code of a download: transformers 5.2 has this model."""
    assert "--trust-remote-code" not in dry_run(GLM5).flags
    assert dry_run(GLM5, "--", "--trust-remote-code").value("--trust-remote-code") == []


@pytest.mark.parametrize(
    ("arguments", "limit", "rows"),
    [
        (["--max-running", "256"], None, None),
        (["--max-running", "257"], None, 257),
        (["--max-running", "64", "--mtp"], None, None),
        (["--max-running", "65", "--mtp"], None, 260),
        (["--max-running", "257"], "512", None),
        (["--max-running", "64", "--mtp"], "255", 256),
        # the server refuses it
        (["--max-running", "257"], "many", None),
    ],
)
def test_rows_beyond_oeas_limit(arguments, limit, rows):
    """Holds that it is said where the largest batches are stock routing, and to OEA alone."""
    settings = {} if limit is None else {"SGLANG_OEA_MAX_ROWS": limit}
    dry = ("--dry-run", "--sglang-version", "0.5.23")
    assert run(GLM5, *dry, *arguments, **settings).stderr == ""
    done = run(GLM5, *dry, *arguments, "--k0", "4", **settings)
    said = [] if rows is None else [f" are {rows} rows;", f"SGLANG_OEA_MAX_ROWS={limit or 256}\n"]
    assert done.returncode == 0 and len(done.stderr.splitlines()) == bool(said)
    assert all(words in done.stderr for words in said), done.stderr


def test_each_line_has_a_reason():
    """Holds that nobody has to guess what a flag or a variable is for."""
    for arguments in [(GLM5,), (GLM5, "--mtp"), (QWEN3, "--k0", "4")]:
        lines = dry_run(*arguments).text.splitlines()[2:-2]
        assert [line for line in lines if "  # " not in line] == [
            "  python3 -m sglang.launch_server"
        ]


def test_what_is_printed_is_what_runs(tmp_path):
    """Holds that the printed text, pasted into a shell, starts what the launcher starts itself."""
    python = tmp_path / "my python"
    answers = (
        '[[ $1 == - ]] && { echo 0.5.23 plugin; exit; }\nprintf "%s\\n" "$SGLANG_OEA_K0" "$@"\n'
    )
    python.write_text(f"#!/usr/bin/env bash\n{answers}")
    python.chmod(0o755)
    arguments = ("--k0", "1:8,8:4", "--", "--served-model-name", "it's a model; $HOME")
    printed = run(QWEN3, "--dry-run", *arguments, PYTHON=str(python)).stdout
    pasted = subprocess.run(["bash", "-c", printed], capture_output=True, text=True)
    launched = run(QWEN3, *arguments, PYTHON=str(python))
    assert pasted.stdout == launched.stdout
    assert launched.stdout.splitlines()[:3] == ["1:8,8:4", "-m", "sglang.launch_server"]
    assert launched.stdout.splitlines()[-1] == "it's a model; $HOME"


def test_a_third_model_is_a_dozen_lines(tmp_path):
    """Holds that what the launchers share is all in recipe.sh."""
    text = THIRD.format(recipe=shlex.quote(str(SCRIPTS / "recipe.sh")))
    assert len(text.splitlines()) <= 13
    script = tmp_path / "launch third.sh"
    script.write_text(text)
    printed = dry_run(script, "--k0", "4", "--mtp", "--max-running", "2", release="0.5.9")
    assert printed.value("--model-path") == ["zai-org/GLM-4.5-Air-FP8"]
    assert printed.value("--cuda-graph-bs") == ["1", "2"]
    assert printed.value("--speculative-algorithm") == ["EAGLE"]
    assert printed.variables["SGLANG_OEA_K0"] == "4"
    assert os.access(QWEN3, os.X_OK) and os.access(GLM5, os.X_OK)
