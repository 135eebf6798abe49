"""The demo's verdict, and what it leaves behind when it is interrupted."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import demo
import pytest
from demo import Round
from make_demo_model import CACHE

ARGS = argparse.Namespace(k0=4, rounds=3)
DEMO = Path(demo.__file__)


def proof(**changes) -> dict:
    """The `oea` field of a server that rerouted."""
    return {"layers": {"moe": 4, "rerouted": 4}, "slots_rerouted": 9} | changes


def rounds(on: float = 20.0) -> dict[str, list[Round]]:
    """Three rounds of each kind; `on` is T with OEA."""
    return {
        "off": [Round(100.0, 40.0), Round(90.0, 40.0), Round(110.0, 40.0)],
        "on": [Round(150.0, on)] * 3,
        "stock": [Round(101.0, None)] * 3,
    }


def test_table_and_proof(capsys):
    """Medians, ratios to "off", and the proof as it came."""
    assert demo.report(ARGS, rounds(), proof()) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["OEA", "server,", "k0=0", "(off)", "40.0", "100.0", "1.00"] in lines
    assert ["OEA", "server,", "k0=4", "20.0", "150.0", "1.50"] in lines
    assert ["server", "without", "OEA", "not", "counted", "101.0", "1.01"] in lines
    assert '"slots_rerouted": 9' in out


@pytest.mark.parametrize(
    ("found", "active"),
    [
        ({"enabled": False}, 20.0),
        (proof(slots_rerouted=0), 20.0),
        (proof(layers={"moe": 4, "rerouted": 0}), 20.0),
        (proof(layers={"moe": 4, "rerouted": 3}), 20.0),
        (proof(), 40.0),
    ],
)
def test_exits_1_if_oea_did_not_run(capsys, found, active):
    """Nothing rerouted, a layer missed, or T that did not fall."""
    assert demo.report(ARGS, rounds(active), found) == 1
    assert "OEA did not run" in capsys.readouterr().err


@pytest.mark.server
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_no_process_behind(sign):
    """Ctrl-C, and a polite end, while the server starts."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--cache", str(CACHE)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background job ignores Ctrl-C, and so would what it starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stderr:
        if line.startswith("starting SGLang"):
            break
    time.sleep(3)
    children = _descendants(process.pid)
    assert len(children) >= 1

    process.send_signal(sign)

    assert process.wait(30) == 128 + sign
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def _descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed] + [
        grandchild for child in listed for grandchild in _descendants(int(child))
    ]
