"""The topk cases on each patched release, and that they fail without the edit of `topk.py`."""

import functools
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from topk_cases import CASES, RELEASES
from topk_verdict import verify
from wheels import unpacked

TESTS = Path(__file__).resolve().parents[1]
RUNNER = Path(__file__).with_name("run_topk_cases.py")
RUNS = [(release, case) for release in RELEASES for case in CASES if release in case.releases]


@pytest.fixture(scope="session")
def seen(patched, tmp_path_factory):
    """Release -> what run_topk_cases.py saw there; one process a release, with OEA asked for."""

    @functools.cache
    def run(release: str) -> dict[str, dict[str, dict]]:
        tree = patched(release)
        upstream_topk = unpacked(release) / "sglang/srt/layers/moe/topk.py"
        results = tmp_path_factory.mktemp("seen") / "results.json"
        done = subprocess.run(
            [sys.executable, RUNNER, release, tree, upstream_topk, results],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join([str(tree), str(TESTS)]), "SGLANG_OEA_K0": "3"},
            cwd=tree,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(results.read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize(
    ("release", "case"), RUNS, ids=[f"{release} {case.name}" for release, case in RUNS]
)
def test_case(seen, release, case):
    """Holds that a patched release selects what the oracle makes of the router's formula."""
    verify(case, release, seen(release)["patched"][case.name])


@pytest.mark.parametrize("release", RELEASES)
def test_cases_fail_without_the_edit(seen, release):
    """Holds that the cases see whether the release's `topk.py` reroutes at all."""
    for case in CASES:
        if release not in case.releases:
            continue
        outcome = seen(release)["upstream"][case.name]
        if case.is_stock(release) and release not in case.left_alone:
            verify(case, release, outcome)
        else:
            with pytest.raises(AssertionError):
                verify(case, release, outcome)


def test_stubs_refuse_what_no_case_lists():
    """Holds that a release's `topk.py` cannot run on a stub that nobody thought of."""
    stubs = runpy.run_path(str(RUNNER.with_name("upstream_stubs.py")))
    for touch in (
        lambda: stubs["Stub"]("sglang.srt.utils").is_blackwell,
        lambda: stubs["Unused"]("get_parallel")(),
        lambda: stubs["Unused"]("get_parallel").moe_ep_size,
    ):
        with pytest.raises(AssertionError, match="no case lists it"):
            touch()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_something_to_reroute(case):
    """Holds that a case is what its name says: rows change, and ties lie where OEA decides."""
    if case.tied:
        # two experts of one row score alike, and only one of them is in the baseline
        assert any(_tied_at_k0(case, *row) for row in enumerate(case.stock[1]))
    real = [row for row in range(case.rows) if case.valid[row]]
    changed = [row for row in real if not case.keeps(row)]
    assert bool(changed) == (0 < case.k0 < case.slots and len(real) > 1)


def _tied_at_k0(case, row, ids) -> bool:
    last, first_left_out = ids[case.k0 - 1], ids[case.k0]
    return bool(case.logits[row, last] == case.logits[row, first_left_out])
