"""Ranks compare their settings: two real processes over gloo on 127.0.0.1."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from stubs import make_config

from sglang_oea.core import ranks

# scenario -> the fingerprint of each rank; None never answers
SCENARIOS = {
    "equal": ("aaaa", "aaaa"),
    "different": ("a" * 64, "b" * 64),
    "silent_rank_1": ("aaaa", None),
    "silent_rank_0": (None, "aaaa"),
}


def _rank(rank: int, folder: Path) -> None:
    """One process: every scenario in a fresh group, its outcome in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for name, fingerprints in SCENARIOS.items():
        store = f"file://{folder / name}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        mine, start, outcome = fingerprints[rank], time.monotonic(), None
        answered = folder / f"{name}.{1 - rank}"
        if None in fingerprints:
            ranks.TIMEOUT = timedelta(seconds=2)
        if mine is not None:
            refusal = ranks.disagreement(mine, dist.group.WORLD)
            outcome = refusal and str(refusal)
        while mine is None and not answered.exists() and time.monotonic() < start + 12:
            time.sleep(0.05)
        result = {"refusal": outcome, "seconds": time.monotonic() - start}
        (folder / f"{name}.tmp{rank}").write_text(json.dumps(result))
        (folder / f"{name}.tmp{rank}").rename(folder / f"{name}.{rank}")
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Scenario -> what each rank got."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, (folder,), nprocs=2)
    return {
        name: [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)]
        for name in SCENARIOS
    }


def test_equal(outcomes):
    """Holds that equal settings pass on both ranks, long before the timeout."""
    assert [o["refusal"] for o in outcomes["equal"]] == [None, None]
    assert all(o["seconds"] < 10 for o in outcomes["equal"])


def test_different(outcomes):
    """Holds that both ranks refuse, with one message that names both."""
    first, second = (o["refusal"] for o in outcomes["different"])
    assert first == second
    assert f"rank 0: {'a' * 12}, rank 1: {'b' * 12}\n" in first
    assert "SGLANG_OEA_" in first and "every node" in first


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_never_answers(outcomes, silent):
    """Holds that a rank with OEA off, which compares nothing, is refused by the other in time.

    A monitored barrier let every rank but 0 wait for the group's own timeout, which is minutes.
    """
    outcome = outcomes[f"silent_rank_{silent}"][1 - silent]
    assert f"no answer from rank {silent} within 2 s" in outcome["refusal"]
    assert outcome["seconds"] < 8


def test_one_rank_alone(monkeypatch):
    """Holds that a single rank has nothing to compare and does not communicate."""
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    assert ranks.disagreement(make_config("4").fingerprint(), None) is None
