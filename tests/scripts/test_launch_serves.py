"""A launcher that really launches: the GLM-5 recipe around a tiny model, on the CPU platform."""

import sys
from pathlib import Path

import pytest
from launchers import GLM5
from make_demo_model import cached
from serving import CPU_FLAGS, Server, free_port

# what a machine without a GPU cannot do, and what a tiny model has no use for
LEFT_OUT = ("--cuda-graph-bs-decode", "--disable-custom-all-reduce", "--kv-cache-dtype")
IN_PLACE = ("--tp-size=1", "--mem-fraction-static=0.3", "--max-total-tokens=16384")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server that the launcher became, its checkpoint in a folder with a space in its name."""
    workspace = tmp_path_factory.mktemp("launch")
    model = workspace / "a tiny model"
    model.symlink_to(cached("glm4-moe", "tiny"))
    settings = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "2"}
    port = free_port()
    started = Server(model, log=workspace / "log", settings=settings, port=port)
    started.command = [
        *("bash", str(GLM5), "--k0", "4", "--dense", "--model", str(model), "--port", str(port)),
        *("--max-running", "8"),
        *(f"--without={flag}" for flag in LEFT_OUT),
        *("--", *CPU_FLAGS, *IN_PLACE),
    ]
    with started:
        started.wait_ready()
        yield started


@pytest.mark.server
def test_serves_with_oea(server):
    """Holds that the command which is printed serves, with OEA in every MoE layer."""
    answer = server.post(
        "/generate",
        {"text": ["one", "two", "three"], "sampling_params": {"max_new_tokens": 8}},
    )
    assert [len(a["text"]) > 0 for a in answer] == [True] * 3
    oea = server.oea()
    assert oea["enabled"] and oea["layers"]["rerouted"] == oea["layers"]["moe"] > 0
    assert oea["slots_rerouted"] > 0


@pytest.mark.server
def test_is_the_server(server):
    """Holds that the launcher's process becomes the server, so that stopping it stops that."""
    command = Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")
    assert command[1:3] == ["-m", "sglang.launch_server"]
    assert "--attention-backend=torch_native" in command and "flashinfer" not in command
