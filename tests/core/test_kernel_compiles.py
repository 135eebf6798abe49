"""The kernel compiles without a GPU, for each architecture and router that it is meant for.

In a process of its own, since this one interprets kernels. Registers, spills and shared memory are
read from the compiled object with the `cuobjdump` that Triton ships.
"""

import json
import os
import subprocess
import sys

import pytest

from sglang_oea.core import launch

ARCHITECTURES = (80, 90, 100, 120)
# experts, slots, scoring's place, biased, groups, groups kept
ROUTERS = {
    "GLM-5": (256, 8, 1, True, 1, 1),
    "Qwen3": (128, 8, 0, False, 1, 1),
    "DeepSeek-V3": (256, 8, 1, True, 8, 4),
    "512 experts, top-10": (512, 10, 0, False, 1, 1),
}
# what an SM120 gives one block
SHARED_LIMIT = 99 * 1024
COMPILE = """
import json, os, re, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from sglang_oea.core.kernel import reroute_kernel

architecture, kinds = json.loads(sys.argv[1])
tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
pointers = dict(logits_ptr="*bf16", bias_ptr="*fp32", ids_ptr="*i32", weights_ptr="*fp32",
    valid_ptr="*i1", k0_ptr="*i32", out_ids_ptr="*i32", out_weights_ptr="*fp32",
    counters_ptr="*i64", scratch_ptr="*i32")
for name, constants in kinds.items():
    signature = {}
    for argument in reroute_kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        else:
            signature[argument] = pointers.get(argument, "i32")
    if not constants["BIASED"]:
        signature["bias_ptr"] = "constexpr"
        constants = constants | {"bias_ptr": None}
    source = triton.compiler.ASTSource(reroute_kernel, signature, constants)
    built = triton.compile(source, GPUTarget("cuda", architecture, 32), {"num_warps": 4})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [os.path.join(tools, "cuobjdump"), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL|SHARED):(\\d+)", usage))
    found["dynamic"] = built.metadata.shared
    print(json.dumps([name, {key: int(value) for key, value in found.items()}]), flush=True)
"""


@pytest.fixture(scope="module", params=ARCHITECTURES)
def compiled(request) -> dict[str, dict[str, int]]:
    """Router -> resources, on one architecture."""
    kinds = {}
    for name, (experts, slots, scoring, biased, groups, kept) in ROUTERS.items():
        arguments = (experts, slots, slots, scoring, biased, True, groups, kept, None, False)
        kinds[name] = launch.constants(*arguments)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, json.dumps([request.param, kinds])]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(json.loads(line) for line in run.stdout.splitlines())


@pytest.mark.parametrize("router", ROUTERS)
def test_compiles_without_spills(compiled, router):
    """No register is spilled to memory, and the shared memory fits an SM120."""
    usage = compiled[router]
    print(router, usage)
    assert 0 < usage["REG"] <= 255
    # spills go to the stack, which is local memory
    assert usage["STACK"] == usage["LOCAL"] == 0
    assert max(usage["SHARED"], usage["dynamic"]) < SHARED_LIMIT
