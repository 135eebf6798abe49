"""SGLang 0.5.23 with the patch and without the package, over HTTP: the plugin's twin.

The patched tree lies before the installed SGLang on the path, and so does a package `sglang_oea`
that cannot be imported.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from make_demo_model import cached
from serving import Server
from wheels import unpacked

from server.conftest import FLAGS
from server.load import TOP_K, counted, generate, tokens
from sglang_oea.patching import commands

pytestmark = pytest.mark.server
KIND, RELEASE = "glm4-moe", "0.5.23"


def link(source: str, target: str) -> None:
    """A second name for a file that nobody writes into; a copy where that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def patched_path(workspace: Path) -> str:
    """`PYTHONPATH` of a process that has the patch and not the package."""
    tree, blocked = workspace / "patched", workspace / "blocked"
    shutil.copytree(unpacked(RELEASE), tree, copy_function=link)
    assert commands.run("apply", str(tree), None) == 0
    (blocked / "sglang_oea").mkdir(parents=True)
    (blocked / "sglang_oea" / "__init__.py").write_text("raise ImportError('not installed')\n")
    return f"{blocked}{os.pathsep}{tree}"


@pytest.fixture(scope="module")
def patched(workspace: Path, patched_path: str) -> Iterator[Callable[..., Server]]:
    """`patched(**settings)`: a context that serves with these settings."""

    def server(**settings: str) -> Server:
        settings |= {"PYTHONPATH": patched_path, "SGLANG_PLUGINS": "none"}
        # the recorder's folder keeps the shared servers apart from this one
        settings["SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"] = str(workspace / "patched-recordings")
        log = workspace / f"patched-{len(settings)}.log"
        return Server(cached(KIND, "tiny"), log=log, settings=settings, flags=FLAGS)

    return server


def test_patched_server_is_the_plugin_s_twin(serve, patched):
    """Same requests, same answers, same counters; and live k0 up to stock."""
    plugin, stock = serve(KIND, SGLANG_OEA_K0="4"), serve(KIND)
    plugin.set_k0(4)
    expected, expected_counters = counted(plugin, lambda: generate(plugin))
    assert expected_counters["slots_rerouted"] > 0
    with patched(SGLANG_OEA_K0="4") as server:
        server.wait_ready()
        proof = server.oea()
        answers, counters = counted(server, lambda: generate(server))
        assert tokens(answers) == tokens(expected)
        assert counters == expected_counters
        assert list(proof) == list(plugin.oea())
        assert proof["layers"] == {"moe": 2, "rerouted": 2}
        server.set_k0(TOP_K)
        assert tokens(generate(server)) == tokens(generate(stock))
        assert server.post("/set_internal_state", {"server_args": {"oea_k0": -1}}) == [False]
        assert server.oea()["k0"] == TOP_K
    log = server.log.read_text()
    assert "is on: k0=4" in log
    assert "not installed" not in log


def test_patched_server_that_was_not_asked_is_stock(serve, patched):
    """Unset: stock answers, no word in the log, and `/server_info` says that it is off."""
    stock = serve(KIND)
    with patched() as server:
        server.wait_ready()
        assert server.oea() == {"enabled": False}
        assert tokens(generate(server)) == tokens(generate(stock))
    assert "sglang_oea" not in server.log.read_text()


def test_patched_server_refuses_a_bad_setting_before_it_starts(patched_path):
    """The import of SGLang's top-k is the earliest moment; a stock server must not come of it."""
    settings = {"PYTHONPATH": patched_path, "SGLANG_PLUGINS": "none", "SGLANG_OEA_K0": "four"}
    command = [sys.executable, "-c", "import sglang.srt.layers.moe.topk"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 1
    assert "SGLANG_OEA_K0=four" in done.stderr
    assert "expected" in done.stderr
