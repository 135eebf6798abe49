"""Holds a host to a topk case, by what `topk_hosts.py` saw it do: ids exactly, weights nearly."""

import oracle
import pytest
import torch
from topk_cases import PACKING, Case

# SGLang's own weights are float32 sums of 8; in bfloat16 every score has 8 bits
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


def verify(case: Case, release: str, seen: dict) -> None:
    """Assert that a host did what the case says."""
    stock, got = seen["stock"], seen["rerouted"]
    real = [row for row in range(case.rows) if case.valid[row]]
    # what SGLang counts as padding it may have masked by then
    for row in real if case.counted else range(case.rows):
        _same_experts(case, case.stock, stock, row)
    assert stock["packed"] == (case.situation in PACKING)

    assert bool(seen["left_alone"]) == (release in case.left_alone), seen["left_alone"]
    assert case.left_alone.get(release, "") in seen["left_alone"]
    if case.is_stock(release):
        # bit for bit, whatever was asked
        assert got == stock
        return

    for row in real:
        _real_row(case, stock, got, row)
    for row in case.padding:
        # 0.5.23 puts its own mask on what OEA returns
        masked = case.counted and release == "0.5.23"
        assert got["ids"][row] == ([-1] * case.slots if masked else got["ids"][real[0]])
        assert got["weights"][row][: case.slots] == [0.0] * case.slots
        assert got["weights"][row][case.slots :] == stock["weights"][row][case.slots :]
    assert got["dtypes"] == stock["dtypes"]
    assert not got["packed"]
    routed = [row[: case.slots] for row in case.expected[1]]
    assert seen["experts_after"] == len(oracle.active(routed, case.valid))
    _witnesses(case, got, real)


def _real_row(case: Case, stock: dict, got: dict, row: int) -> None:
    _same_experts(case, case.expected, got, row)
    if case.keeps(row):
        for what in ("ids", "weights"):
            assert got[what][row] == stock[what][row]
    else:
        # baseline, piggybacked, completing, each by rank; shared experts last
        assert got["ids"][row] == [case.physical(expert) for expert in case.expected[1][row]]


def _same_experts(case: Case, expected: tuple, got: dict, row: int) -> None:
    """The same set of experts, each with the same weight."""
    weights, ids = expected
    expected_row = dict(zip(map(case.physical, ids[row]), weights[row], strict=True))
    got_row = dict(zip(got["ids"][row], got["weights"][row], strict=True))
    assert len(got_row) == len(got["ids"][row]), "an expert twice"
    assert got_row.keys() == expected_row.keys()
    assert got_row == pytest.approx(expected_row, rel=TOLERANCE[case.dtype], abs=1e-6)


def _witnesses(case: Case, got: dict, real: list[int]) -> None:
    """Recorder and capture saw, once each, the ids that were returned."""
    (recorded,), (captured,) = got["recorded"], got["captured"]
    logical = {case.physical(expert): expert for expert in range(case.experts + case.shared)}
    for row in real:
        # 0.5.23 records routed experts alone
        assert recorded[row] in (got["ids"][row], got["ids"][row][: case.slots])
        # from 0.5.10 on SGLang captures before it maps
        assert captured[row] == [logical[expert] for expert in got["ids"][row]]
