"""What `checkpoint.py` reads from a folder, as a module and as the launchers use it."""

import json
import os
import subprocess
import sys

import checkpoints
import pytest
from checkpoint import Checkpoint, CheckpointError
from machine import SCRIPTS

SHARED = ("model.layers.*.mlp.shared_experts*",)
MTP = (*checkpoints.WEIGHTS, (checkpoints.MTP,))


def printed(*arguments):
    """The command as a launcher runs it, with nothing installed."""
    command = [sys.executable, "-S", str(SCRIPTS / "checkpoint.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_command(tmp_path):
    """Holds the lines that the launchers read, in a folder with a space in its name."""
    done = printed(checkpoints.make(tmp_path / "GLM 5", excluded=SHARED, weights=MTP))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "architecture=GlmMoeDsaForCausalLM",
        "experts=256",
        "slots=8",
        "mtp_layers=1",
        "excludes_shared_experts=1",
        "nvfp4=1",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "has no config.json"),
        ("{", "config.json cannot be read"),
        ("[]", "holds a list, expected an object"),
    ],
)
def test_no_checkpoint(tmp_path, text, said):
    """Holds that a folder that is none is one line and exit 2, without a traceback."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    done = printed(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert said in done.stderr and str(tmp_path) in done.stderr


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("--verbose",)])
def test_bad_usage(arguments):
    """Holds that anything but one folder is answered with the usage and exit 2."""
    done = printed(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: checkpoint.py FOLDER\n")


def test_truncated_index(tmp_path):
    """Holds that half an index is an error: it would pass for a checkpoint of no shards."""
    folder = checkpoints.make(tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text()[:-20])
    with pytest.raises(CheckpointError, match="index.json cannot be read"):
        Checkpoint.read(folder)


def test_mtp_setting_without_weights(tmp_path):
    """Holds that the weights decide: quantised copies keep the setting and drop layer 78."""
    assert Checkpoint.read(checkpoints.make(tmp_path / "without")).mtp_layers == 0
    assert Checkpoint.read(checkpoints.make(tmp_path / "with", weights=MTP)).mtp_layers == 1
    unset = checkpoints.make(
        tmp_path / "unset", settings={"num_nextn_predict_layers": 0}, weights=MTP
    )
    assert Checkpoint.read(unset).mtp_layers == 0


def test_mtp_without_index(tmp_path):
    """Holds that without an index the shards are asked, and without shards the setting."""
    folder = checkpoints.make(tmp_path / "model", weights=MTP)
    (folder / "model.safetensors.index.json").unlink()
    assert Checkpoint.read(folder).mtp_layers == 1
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert Checkpoint.read(folder).mtp_layers == 0
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    assert Checkpoint.read(folder).mtp_layers == 1


def test_settings_one_level_down(tmp_path):
    """Holds that a multimodal checkpoint is read: its language model is in `text_config`."""
    folder = tmp_path / "model"
    folder.mkdir()
    text = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
    described = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(described))
    read = Checkpoint.read(folder)
    assert (read.architecture, read.experts, read.slots) == (described["architectures"][0], 128, 8)
    assert not read.nvfp4 and not read.excludes_shared_experts and not read.shards


@pytest.mark.parametrize(
    ("section", "nvfp4", "excludes"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, True, False),
        ({"quant_algo": "NVFP4", "ignore": ["model.layers.5.mlp.shared_experts*"]}, True, True),
        ({"format": "nvfp4-pack-quantized", "ignore": ["re:.*shared_experts.*"]}, True, True),
        ({"quant_algo": "NVFP4", "ignore": ["*.mlp.shared_expert_gate"]}, True, False),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo": "NVFP4"}}},
            1,
            0,
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, False, False),
    ],
)
def test_quantisation_in_config(tmp_path, section, nvfp4, excludes):
    """Holds both exporters' words, and that a shared expert's own gate is no shared expert."""
    folder = checkpoints.make(tmp_path / "model", settings={"quantization_config": section})
    (folder / "hf_quant_config.json").unlink()
    read = Checkpoint.read(folder)
    assert (read.nvfp4, read.excludes_shared_experts) == (nvfp4, excludes)


def test_shared_experts_without_scales(tmp_path):
    """Holds that BF16 shared experts are seen in the weights where no rule names them.

    Layer 78 is left out of account: its weights are BF16 in every copy.
    """
    bare = [
        [name for name in shard if name != f"{checkpoints.SHARED}.weight_scale"] for shard in MTP
    ]
    assert not Checkpoint.read(
        checkpoints.make(tmp_path / "scaled", weights=MTP)
    ).excludes_shared_experts
    assert Checkpoint.read(
        checkpoints.make(tmp_path / "bare", weights=bare)
    ).excludes_shared_experts


def test_whole_shards(tmp_path):
    """Holds that whole shards have no problem, and that their tensors are what the index counts."""
    read = Checkpoint.read(checkpoints.make(tmp_path / "model"))
    assert [(s.name, s.problem) for s in read.shards] == [
        ("model-00001-of-00002.safetensors", ""),
        ("model-00002-of-00002.safetensors", ""),
    ]
    assert sum(s.tensor_bytes for s in read.shards) == read.index_bytes == 48


def spoiled(folder, how):
    """The problem of the first shard after something happened to it."""
    path = folder / "model-00001-of-00002.safetensors"
    how(path)
    first, second = Checkpoint.read(folder).shards
    assert not second.problem
    return first.problem


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "its header says"),
        (lambda path: os.truncate(path, 40), "40 bytes cannot hold its own header"),
        (lambda path: os.truncate(path, 0), "0 bytes cannot hold its own header"),
        (lambda path: path.write_bytes(b"\4" + bytes(7) + b"abcd"), "has no safetensors header"),
        (
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "cannot hold",
        ),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "its header says"),
        (
            lambda path: checkpoints.safetensors(path, ["other.weight"]),
            "lacks 3 tensors of the index",
        ),
    ],
    ids=[
        "gone",
        "last byte",
        "in the header",
        "empty",
        "no JSON",
        "git-lfs",
        "too long",
        "another shard",
    ],
)
def test_spoiled_shard(tmp_path, how, said):
    """Holds that each way in which a download goes wrong is found without reading weights."""
    assert said in spoiled(checkpoints.make(tmp_path / "model"), how)
