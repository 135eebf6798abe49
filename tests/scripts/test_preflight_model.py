"""What the preflight says of a checkpoint, and of the room for it."""

import json
import os

import checkpoints
import pytest
from blackwell import Blackwell, only_fault

EXCLUDING = ("lm_head", "model.layers.*.mlp.shared_experts*")


@pytest.fixture
def machine(tmp_path):
    """A machine on which everything is fine until a test breaks it."""
    return Blackwell(tmp_path)


def test_too_little_memory(machine):
    """Holds that the fullest GPU decides, and that the need is said with its parts."""
    machine.gpus(free={5: 60000})
    judged = machine.judged()
    only_fault(judged, "memory", "GPU 5 has the least free, 58.6 of 95.6 GiB", "weights 57.1")


def test_memory_for_the_requests(machine):
    """Holds the formula of the KV cache: 314,304 tokens in BF16 are 29.32 GiB, as SGLang logged.

    More than there is room for is a warning: SGLang queues requests, it does not fail.
    """
    judged = machine.judged("--context", "9822", "--max-running", "32")
    only_fault(judged, "memory", "KV 29.3 GiB (32 x 9822", "lower --max-running", verdict="warn")
    assert machine.judged("--context", "8192", "--max-running", "32")["memory"][0] == "ok"


def test_missing_shard(machine):
    """Holds that a shard that was never fetched is named."""
    (machine.model / "model-00002-of-00002.safetensors").unlink()
    judged = machine.judged()
    only_fault(judged, "shards", "1 of 2 are not whole (model-00002-of-00002.safetensors: missing)")
    assert "0 GB to fetch" in judged["disk"][1]


def test_truncated_shard(machine):
    """Holds that a download that broke off is found: it has its name and most of its bytes."""
    shard = machine.model / "model-00001-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 3)
    only_fault(machine.judged(), "shards", "model-00001-of-00002.safetensors", "its header says")


def test_index_of_another_revision(machine):
    """Holds that the index's total is compared with what the shards hold."""
    index = machine.model / "model.safetensors.index.json"
    described = json.loads(index.read_text())
    described["metadata"]["total_size"] += 8
    index.write_text(json.dumps(described))
    only_fault(machine.judged(), "shards", "48 bytes of tensors, the index says 56", verdict="warn")


def test_no_checkpoint(machine):
    """Holds that a folder that is not there is said by the launcher too, and the rest is judged."""
    judged = machine.judged("--model", str(machine.home / "nowhere"), model=False)
    assert judged["checkpoint"][0] == judged["launcher"][0] == "FAIL"
    assert judged["memory"][0] == judged["GPUs"][0] == "ok"


def test_other_model(machine, tmp_path):
    """Holds that the expert counts are GLM-5's."""
    machine.model = checkpoints.make(tmp_path / "other", settings={"n_routed_experts": 160})
    only_fault(machine.judged(), "model", "160 experts", "expected GlmMoeDsaForCausalLM: 256")


def test_id_in_the_cache(machine):
    """Holds that an ID is looked up where Hugging Face's library downloads to."""
    named = ("--model", "someone/GLM-5-NVFP4")
    cache = machine.home / "hub" / "models--someone--GLM-5-NVFP4"
    assert machine.judged(*named, model=False)["checkpoint"][1].endswith("is not downloaded")
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0123abcd")
    checkpoints.make(cache / "snapshots" / "0123abcd")
    judged = machine.judged(*named, model=False, HF_HOME=str(machine.home))
    assert judged["shards"][0] == "ok" and "checkpoint" not in judged


def test_mtp(machine, tmp_path):
    """Holds that MTP wants the layer, the room for it, and OEA in verification."""
    judged = machine.judged("--mtp", "--max-running", "16")
    assert judged["MTP"][0] == "FAIL" and "no MTP layer" in judged["launcher"][1]
    machine.model = checkpoints.make(
        tmp_path / "mtp", weights=(*checkpoints.WEIGHTS, (checkpoints.MTP,))
    )
    judged = machine.judged("--mtp", "--max-running", "16")
    assert judged["MTP"][0] == judged["launcher"][0] == "ok"
    assert "modes=decode,verify" in machine.judged("--mtp", "--k0", "4")["OEA"][1]
    assert "weights 59.3" in judged["memory"][1] and "79 x 1284 B" in judged["memory"][1]


@pytest.mark.parametrize("release", ["0.5.9", "0.5.18"])
def test_fused_shared_experts(machine, tmp_path, release):
    """Holds that an excluding checkpoint is not fused: by the launcher, or by SGLang itself.

    Fused on 0.5.9, its load ends minutes later in a size mismatch (SGLang 29562).
    """
    machine.model = checkpoints.make(tmp_path / "excluding", excluded=EXCLUDING)
    machine.install("sglang", release)
    assert machine.judged()["shared experts"][0] == "ok"
    without = ("--without", "--disable-shared-experts-fusion")
    judged = machine.judged(*without)
    if release == "0.5.18":
        assert judged["shared experts"][0] == "ok"
    else:
        only_fault(judged, "shared experts", "fuse", "--disable-shared-experts-fusion")
        given = machine.judged(*without, "--", "--disable-shared-experts-fusion")
        assert given["shared experts"][0] == "ok"
