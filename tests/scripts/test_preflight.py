"""The preflight on a good machine, on one with a single fault each, and on none at all."""

import json
import os
import socket
import subprocess
import sys

import pytest
from blackwell import Blackwell, only_fault
from machine import SCRIPTS
from preflight import host, software

DRIVER = "install NVIDIA's driver"


@pytest.fixture
def machine(tmp_path):
    """A machine on which everything is fine until a test breaks it."""
    return Blackwell(tmp_path)


def test_good_machine(machine):
    """Holds that nothing is held against a machine that is ready, and that all was looked at."""
    judged = machine.judged()
    assert {name: line for name, line in judged.items() if line[0] != "ok"} == {}
    assert set(judged) == {
        *("GPUs", "compute capability", "driver", "peer-to-peer", "NCCL level", "NUMA", "IOMMU"),
        *("nofile", "memlock", "environment", "port", "transformers", "sglang", "launcher"),
        *("model", "quantisation", "shards", "shared experts", "disk", "memory", "OEA"),
    }
    assert judged["NCCL level"][1] == "SYS is the farthest pair: NCCL_P2P_LEVEL=SYS"
    assert judged["NUMA"][1] == "2 nodes; 4 GPUs on node 0, 4 GPUs on node 1"
    assert judged["peer-to-peer"][1] == "all 56 pairs"


def test_lines(machine):
    """Holds the report for people: a line a check, fixes below, a verdict at the end."""
    done = machine.preflight()
    assert (done.returncode, done.stderr) == (0, "")
    assert "[ok  ] compute capability: 12.0\n" in done.stdout and "->" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ready to serve, as far as can be told: 21 ok")
    machine.gpus(count=7)
    done = machine.preflight()
    assert done.returncode == 1
    assert "[FAIL] GPUs: 7 of 8" in done.stdout and "\n       -> the recipe is for" in done.stdout
    assert done.stdout.splitlines()[-1] == "not ready to serve: 20 ok, 0 warn, 1 FAIL"


def test_seven_gpus(machine):
    """Holds that a GPU that fell off the bus is noticed."""
    machine.gpus(count=7)
    only_fault(machine.judged(), "GPUs", "7 of 8", "lspci")


def test_hidden_gpus(machine):
    """Holds that GPUs are counted as the server will see them, which nvidia-smi does not."""
    judged = machine.judged(CUDA_VISIBLE_DEVICES="0,1,2,3")
    only_fault(judged, "CUDA_VISIBLE_DEVICES", "'0,1,2,3' shows 4 GPUs")


def test_wrong_capability(machine):
    """Holds that the recipe is refused to a data-centre Blackwell, whose kernels differ."""
    machine.gpus(capability="10.0")
    only_fault(machine.judged(), "compute capability", "GPU 7 has 10.0", "not 12.0")


def test_old_driver(machine):
    """Holds the two ways in which a driver is too old: for the GPU, and for torch's CUDA."""
    machine.gpus(driver="550.54.15", cuda="12.4")
    only_fault(machine.judged(), "driver", "550.54.15", "CUDA 12.8")
    machine.gpus(driver="570.86.15", cuda="12.8")
    assert machine.judged()["driver"][0] == "ok"
    machine.install("nvidia_cuda_runtime", "13.0.96")
    only_fault(machine.judged(), "driver", "up to 12.8; torch brings CUDA 13.0")


def test_old_transformers(machine):
    """Holds that 4.57, which SGLang 0.5.9 pins, is refused, and that versions are numbers."""
    machine.install("transformers", "4.57.1")
    only_fault(machine.judged(), "transformers", "4.57.1", "'transformers>=5.2'")
    machine.install("transformers", "5.10.0rc1")
    assert machine.judged()["transformers"][0] == "ok"


def test_release_without_recipe(machine):
    """Holds that the launcher says for which releases it has a recipe."""
    machine.install("sglang", "0.5.20")
    only_fault(machine.judged(), "launcher", "no recipe for SGLang 0.5.20")


def test_oea_contract(machine):
    """Holds that a FAIL of `sglang-oea check` is a FAIL here, with its fix."""
    broken = "[FAIL] contract: a.b has no topk_config\\n       -> use sglang 0.5.23"
    machine.oea(f"print('{broken}')\nraise SystemExit(1)\n")
    only_fault(machine.judged(), "OEA, contract", "a.b has no topk_config", "use sglang 0.5.23")


def test_oea_settings(machine):
    """Holds that OEA is judged with the settings of the launcher, not with those of the shell.

    "Off" is no fault where stock was asked for, so `settings` is not among the warnings then.
    """
    assert machine.judged(SGLANG_OEA_K0="6")["OEA"][1].endswith("no FAIL; settings: off")
    judged = machine.judged("--k0", "1:8,8:5", SGLANG_OEA_K0="6")
    assert judged["OEA"][1].endswith("settings: k0=1:8,8:5 modes=decode")
    machine.oea("print('[warn] settings: off')")
    judged = machine.judged("--k0", "4")
    assert judged["OEA, settings"][0] == "warn"


def test_oea_not_installed(machine):
    """Holds that a package that is not there is not taken for one that has nothing to say."""
    machine.package("sglang_oea", "raise ModuleNotFoundError('No module named sglang_oea')")
    only_fault(machine.judged(), "OEA", "No module named sglang_oea", "pip install")


def test_port_taken(machine):
    """Holds that a server that still runs is noticed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        only_fault(
            machine.judged("--port", port), "port", f"{port} of 127.0.0.1", "in use", "ss -ltnp"
        )


def test_links(machine):
    """Holds what is said of peer-to-peer and of NCCL's level, on one socket and on two."""
    machine.gpus(peer="CNS")
    only_fault(machine.judged(), "peer-to-peer", "of 56 pairs 56 say CNS", verdict="warn")
    machine.gpus()
    judged = machine.judged(NCCL_P2P_LEVEL="PHB")
    only_fault(judged, "NCCL level", "export NCCL_P2P_LEVEL=SYS", verdict="warn")
    machine.gpus(sockets=1)
    assert machine.judged(NCCL_P2P_LEVEL="PHB")["NCCL level"][0] == "ok"


def test_system(machine):
    """Holds what is said of the kernel, the limits and the variables of the shell."""
    machine.write("proc/cmdline", "root=/dev/sda1 ro quiet\n")
    only_fault(machine.judged(), "IOMMU", "add iommu=pt", verdict="warn")
    machine.write("proc/cmdline", "root=/dev/sda1 iommu=pt\n")
    machine.limits(nofile="4096")
    only_fault(machine.judged(), "nofile", "at most 4096", verdict="warn")
    machine.limits(memlock="65536")
    only_fault(machine.judged(), "memlock", "at most 65536 bytes", verdict="warn")
    machine.limits()
    judged = machine.judged(SGL_ENABLE_JIT_DEEPGEMM="0")
    only_fault(judged, "environment", "SGLANG_ENABLE_JIT_DEEPGEMM=0", verdict="warn")


@pytest.mark.parametrize(
    ("release", "value", "verdict"),
    [
        *(("0.5.9", value, "warn") for value in ("true", "1", "Yes", "y")),
        *(("0.5.9", value, "ok") for value in ("false", "0", "no", "10")),
        ("0.5.9.post1", "1", "warn"),
        ("0.5.18", "1", "ok"),
        ("0.5.23", "1", "ok"),
        (None, "1", "ok"),
    ],
)
def test_deepgemm_switched_on(release, value, verdict):
    """Holds that the switch is read as SGLang reads it, and judged for 0.5.9 alone."""
    numbers = software.numbers(release or "")
    (line,) = host.environment({"SGLANG_ENABLE_JIT_DEEPGEMM": value}, numbers)
    assert line.verdict == verdict


def test_nvidias_own_settings(machine):
    """Holds that what NVIDIA's sample sets is not held against a machine."""
    judged = machine.judged(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert judged["environment"][0] == "ok"
    machine.install("sglang", "0.5.9.post1")
    judged = machine.judged(SGLANG_ENABLE_JIT_DEEPGEMM="1")
    only_fault(judged, "environment", "the launcher sets it to 0", verdict="warn")


def test_driver_without_gpus(machine):
    """Holds that a list of nothing is a FAIL: a report without a word of GPUs looks good."""
    (machine.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 0\n")
    verdict, found, _ = machine.judged()["GPUs"]
    assert (verdict, found) == ("FAIL", "nvidia-smi lists no GPU")


def test_no_gpu_at_all(machine):
    """Holds that a report is whole where there is no nvidia-smi, no SGLang and no /proc."""
    (machine.bin / "nvidia-smi").unlink()
    machine.install("sglang", None)
    (machine.root / "proc/cmdline").unlink()
    judged = machine.judged()
    amiss = {name: line[0] for name, line in judged.items() if line[0] != "ok"}
    assert amiss == {
        **dict.fromkeys(("GPUs", "sglang"), "FAIL"),
        **dict.fromkeys(("peer-to-peer", "NCCL level", "NUMA", "IOMMU", "memory", "OEA"), "warn"),
    }
    assert judged["NUMA"][1] == "not judged: nvidia-smi is not on PATH"
    assert "weights 57.1" in judged["memory"][1]


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", DRIVER),
        ("echo No devices were found; exit 6", DRIVER),
        ("echo '0, NVIDIA GB10, 12.1, [N/A], [N/A], 580.95.05'", "nvidia-smi -q"),
        ("printf '\\xff\\x00,,'", "nvidia-smi -q"),
    ],
)
def test_unusable_answers(machine, answer, fix):
    """Holds that whatever nvidia-smi says ends in a line, not in a traceback.

    And that a driver that answers is not to be installed.
    """
    machine.put("nvidia-smi", answer)
    judged = machine.judged()
    assert judged["GPUs"][0] == "FAIL" and fix in judged["GPUs"][2]
    assert judged["port"][0] == "ok"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "99999"], "expected a whole number from 1 to 65535, got 99999"),
        (["--context", "0"], "got 0"),
        (["--max-running", "many"], "got many"),
        (["--model"], "expected one argument"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["now"], "unrecognized arguments: now"),
    ],
)
def test_bad_usage(machine, arguments, said):
    """Holds that a bad option is one line after the usage, exit 2."""
    done = machine.preflight(*arguments, model=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_help(machine):
    """Holds that every option is there to be read, and none that only the tests have."""
    done = machine.preflight("--help", model=False)
    assert (done.returncode, done.stderr) == (0, "")
    for option in ("--model", "--port", "--context", "--max-running", "--mtp", "--json", "--k0"):
        assert option in done.stdout
    assert "--root" not in done.stdout


def test_no_python(machine):
    """Holds that a PYTHON that is none is one line and exit 2."""
    done = machine.preflight(PYTHON="python2.7")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: python2.7 is no Python of 3.10 or later")
    assert len(done.stderr.splitlines()) == 1


def test_this_machine():
    """Holds that the real script reports on whatever runs the tests: all subjects, and JSON.

    No test machine has eight of these GPUs and 410 GB of weights, so it exits 1.
    """
    command = ["bash", str(SCRIPTS / "preflight_glm5.sh"), "--json"]
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, env=environ | {"PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    answer = json.loads(done.stdout)
    assert answer["ready"] is False
    subjects = {line["subject"] for line in answer["lines"]}
    assert {"GPUs", "NUMA", "IOMMU", "port", "transformers", "launcher", "disk", "OEA"} <= subjects
    assert not [line for line in answer["lines"] if "the probe broke" in line["found"]]
