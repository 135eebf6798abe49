"""`python -m sglang_oea.launch_server` on stand-ins: releases without a plugin system, and with."""

import subprocess
import sys

import pytest
import torch
from trees import edit

from plugin.launches import COUNTERS, ROOT, Expected, StandIn, environment

SELECT = "sglang.srt.layers.moe.topk:select_experts"
POST_PROCESS = "sglang.srt.layers.moe.topk:_post_process_topk_ids"
ROUTING = {
    f"sglang.srt.layers.moe.topk:{name}"
    for name in (
        *("grouped_topk", "biased_grouped_topk", "fused_topk", "fused_topk_native"),
        "grouped_topk_gpu",
    )
}
HOOKED = {
    SELECT,
    "sglang.srt.layers.moe.fused_moe_triton.layer:select_experts",
    "sglang.srt.model_executor.model_runner:ModelRunner.load_model",
    "sglang.srt.managers.scheduler:Scheduler.get_internal_state",
}
PROCESSES = {"launcher", "detokenizer", "controller", "scheduler-0", "scheduler-1", "scheduler-dp0"}
# the last step of a scheduler is padded
VALID = [[True] * 5, [True] * 3 + [False] * 2]


@pytest.fixture
def stand_in(tmp_path) -> StandIn:
    """SGLang 0.5.9, as far as it matters."""
    return StandIn(tmp_path / "site")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two schedulers, and a controller whose own one loads the model: k0 = 1."""
    stand_in = StandIn(tmp_path_factory.mktemp("served") / "site")
    return stand_in.launch("--tp-size=2", "--dp-size=1", "--model-on=scheduler-dp0", K0="1")


def test_every_process_has_every_hook_once(served):
    """Holds that spawned processes are hooked too, those that a child spawns included, and that
    no function is wrapped twice, by whatever name it is reached.
    """
    assert served.status == 0, served.output
    assert set(served.notes) == PROCESSES
    for name, note in served.notes.items():
        assert note["wrappers"] == dict.fromkeys(HOOKED | ROUTING, 1), name


def test_release_is_said_to_be_untested(served):
    """Holds that nobody takes a release for tested that was never served."""
    assert "sglang 0.5.9 was never tested" in served.output
    assert "live k0 unavailable" in served.output


def test_decode_is_rerouted_in_the_spawned_process(served):
    """Holds that a model which a child loads is rerouted as the oracle says, and prefill is not."""
    prefill, *decode = served.notes["scheduler-dp0"]["steps"]
    assert chosen(prefill) == Expected.of(prefill, k0=3, valid=VALID[0]).stock
    counted = dict.fromkeys(COUNTERS, 0)
    for step, valid in zip(decode, VALID, strict=True):
        expected = Expected.of(step, k0=1, valid=valid)
        assert chosen(step) == expected.ids != expected.stock
        weights = torch.tensor([layer["topk_weights"] for layer in step])
        torch.testing.assert_close(weights, torch.tensor(expected.weights))
        counted = {name: counted[name] + expected.counters[name] for name in COUNTERS}
    state = served.notes["scheduler-dp0"]["internal_state"]
    assert {name: state["oea"][name] for name in COUNTERS} == counted
    assert counted["experts_after"] < counted["experts_before"]
    assert state["oea"]["enabled"] and state["oea"]["layers"] == {"moe": 2, "rerouted": 2}
    # what SGLang says of itself is still there
    assert state["max_running_requests"] == 5


def chosen(step: list[dict]) -> list:
    """The ids of each layer."""
    return [layer["topk_ids"] for layer in step]


def test_arguments_are_handed_over_unchanged(served):
    """Holds that SGLang's own launcher parses the command line, all of it."""
    notes, *others = served.notes["launcher"]["argv"]
    assert notes.startswith("--notes=")
    assert others == ["--tp-size=2", "--dp-size=1", "--model-on=scheduler-dp0"]


@pytest.mark.parametrize("settings", [{}, {"K0": ""}, {"K0": "0"}])
def test_off_leaves_every_process_alone(stand_in, settings):
    """Holds that a launcher kept in a script for good costs nothing while OEA is off."""
    launched = stand_in.launch(bare=True, **settings)
    assert launched.status == 0, launched.output
    assert launched.output == ""
    for name in ("launcher", "detokenizer"):
        assert launched.notes[name].items() >= {"torch": False, "wrappers": {}}.items()


def test_off_serves_stock(stand_in):
    """Holds that without SGLANG_OEA_K0 no function of SGLang is wrapped."""
    launched = stand_in.launch("--tp-size=1", "--model-on=scheduler-0")
    assert launched.status == 0, launched.output
    scheduler = launched.notes["scheduler-0"]
    assert scheduler["wrappers"] == dict.fromkeys(HOOKED | ROUTING, 0)
    for step in scheduler["steps"]:
        assert chosen(step) == Expected.of(step, k0=3, valid=VALID[0]).stock
    assert "oea" not in scheduler["internal_state"]


def test_exit_status_is_passed_on(stand_in):
    """Holds that a supervisor sees how the server ended."""
    assert stand_in.launch("--exit-status=7", bare=True).status == 7


def test_bad_arguments_are_refused_by_sglang(stand_in):
    """Holds that nothing of ours stands between the user and SGLang's own messages."""
    launched = stand_in.launch("--no-such-argument", bare=True)
    assert launched.status == 2
    assert "--no-such-argument" in launched.output


def test_bad_setting_is_refused_before_the_launch(stand_in):
    """Holds that a setting that does not parse stops the launcher, not its children one by one."""
    launched = stand_in.launch("--tp-size=1", bare=True, K0="four")
    assert launched.status == 1
    assert "SGLANG_OEA_K0=four" in launched.output
    assert "Traceback" not in launched.output
    assert launched.notes == {}


@pytest.mark.parametrize("strict", ["1", "0"])
def test_contract_that_does_not_hold(stand_in, strict):
    """Holds that a fork which lacks something is refused, or served stock where that was asked."""
    edit(stand_in.topk, "    router_logits,\n    topk_config,\n", "    logits,\n    topk_config,\n")
    launched = stand_in.launch(K0="1", STRICT=strict)
    assert "select_experts has no router_logits" in launched.output
    assert "Traceback" not in launched.output
    if strict == "1":
        assert launched.status == 1
        assert launched.notes == {}
        return
    assert launched.status == 0
    assert "stock SGLang is served" in launched.output
    for note in launched.notes.values():
        assert note["wrappers"] == dict.fromkeys(HOOKED | ROUTING, 0)


def test_release_with_a_function_after_the_top_k(tmp_path):
    """Holds that 0.5.10, without plugins, is rerouted before `_post_process_topk_ids` and only
    there.
    """
    stand_in = StandIn(tmp_path / "site", "0.5.10").with_post_process()
    launched = stand_in.launch("--tp-size=1", "--model-on=scheduler-0", K0="1")
    assert launched.status == 0, launched.output
    expected = dict.fromkeys(HOOKED | {POST_PROCESS}, 1) | dict.fromkeys(ROUTING, 0)
    for name in ("launcher", "detokenizer", "scheduler-0"):
        assert launched.notes[name]["wrappers"] == expected, name
    scheduler = launched.notes["scheduler-0"]
    for step, valid in zip(scheduler["steps"][1:], VALID, strict=True):
        expected = Expected.of(step, k0=1, valid=valid)
        assert chosen(step) == expected.ids != expected.stock
    assert scheduler["internal_state"]["oea"]["calls"] == 4


def test_release_with_plugins_is_left_to_load_them(tmp_path):
    """Holds that the launcher attaches nothing where SGLang does: no process would be safe from a
    second hook otherwise.
    """
    stand_in = StandIn(tmp_path / "site", "0.5.23").with_plugin_system()
    entry_point = "[sglang.srt.plugins]\noea = sglang_oea.plugin:register\n"
    stand_in.install("sglang_oea", "0.1.0", entry_point)
    launched = stand_in.launch(bare=True, K0="1")
    assert (launched.status, launched.output) == (0, "")
    for name in ("launcher", "detokenizer"):
        # the hooks import torch
        assert launched.notes[name].items() >= {"torch": False, "wrappers": {}}.items()


@pytest.mark.parametrize(
    ("settings", "patched", "starts"),
    [
        ({"K0": "1"}, False, False),
        ({"K0": ""}, False, True),
        # said in the log, and stock is served: so the message promises
        ({"K0": "1", "STRICT": "0"}, False, True),
        # the patch does the work, and needs no entry point
        ({"K0": "1"}, True, True),
    ],
)
def test_release_with_plugins_that_cannot_find_this_one(tmp_path, settings, patched, starts):
    """Holds that a clone on the path, never installed, is not served stock in silence."""
    stand_in = StandIn(tmp_path / "site", "0.5.23").with_plugin_system()
    # the repository itself may hold metadata of an editable install
    (stand_in.folder / "sglang_oea").symlink_to(ROOT / "sglang_oea")
    if patched:
        carried = stand_in.folder / "sglang" / "srt" / "layers" / "moe" / "oea" / "__init__.py"
        carried.parent.mkdir()
        carried.touch()
    command = [sys.executable, "-S", "-m", "sglang_oea.launch_server", "--notes=."]
    environ = environment(**settings) | {"PYTHONPATH": str(stand_in.folder)}
    done = subprocess.run(
        command, cwd=stand_in.folder, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (stand_in.folder / "launcher.json").exists() == starts
    assert done.returncode == (0 if starts else 1)
    refused = bool(settings["K0"]) and not patched
    assert ("no 'oea': this package is on the path and not installed" in done.stderr) == refused
    assert ("pip install" in done.stderr) == refused


def test_no_sglang_at_all(tmp_path):
    """Holds that a Python without SGLang is told so."""
    command = [sys.executable, "-S", "-m", "sglang_oea.launch_server"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sglang_oea: SGLang is not installed")


def test_import_attaches_nothing(stand_in):
    """Holds that only a process that the launcher started is hooked."""
    code = "import sys, sglang_oea.launch_server; sys.exit('sglang' in sys.modules)"
    environ = environment(stand_in.folder, K0="1")
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=stand_in.folder, env=environ)
    assert done.returncode == 0
