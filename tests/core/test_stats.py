"""Counters: what one step adds, per layer, and how they are read."""

import torch

from sglang_oea.core.stats import COLUMNS, Stats


def row(stats: Stats, layer: int) -> dict[str, int]:
    """One layer's counters by name."""
    return dict(zip(COLUMNS, stats.counters[layer].tolist(), strict=True))


def add(stats: Stats, layer: int, before: list, after: list, valid: list[bool], experts=8) -> None:
    """One step from lists."""
    stats.add(layer, torch.tensor(before), torch.tensor(after), torch.tensor(valid), experts)


def test_a_step_by_hand():
    """Holds each column: an invalid row counts nowhere, other layers stay as they were."""
    stats = Stats(3, torch.device("cpu"))
    add(stats, 1, [[0, 1], [2, 0], [5, 6]], [[0, 2], [2, 0], [0, 2]], [True, True, False])
    assert row(stats, 1) == {
        "reached": 1,
        "calls": 1,
        "rows": 2,
        "experts_before": 3,
        "experts_after": 2,
        "slots_rerouted": 1,
    }
    assert not stats.counters[[0, 2]].any()
    assert stats.read()[0] == [False, True, False]


def test_columns_in_another_order_are_not_rerouted():
    """Holds that slots_rerouted compares sets, not columns."""
    stats = Stats(1, torch.device("cpu"))
    add(stats, 0, [[3, 1, 2]], [[2, 3, 1]], [True])
    assert row(stats, 0)["slots_rerouted"] == 0


def test_negative_ids_are_no_experts():
    """Holds that -1 is not counted, and not taken for expert 0, in either tensor."""
    stats = Stats(1, torch.device("cpu"))
    add(stats, 0, [[-1, -2], [-1, 4]], [[-1, -2], [7, 4]], [True, True])
    got = row(stats, 0)
    assert (got["experts_before"], got["experts_after"], got["slots_rerouted"]) == (1, 2, 1)


def test_a_step_without_valid_rows():
    """Holds that warm-up on padding alone proves that the layer is reached, and is no call."""
    stats = Stats(1, torch.device("cpu"))
    add(stats, 0, [[0, 1]], [[0, 1]], [False])
    assert row(stats, 0) == dict.fromkeys(COLUMNS, 0) | {"reached": 1}
    assert stats.read()[0] == [True]


def test_totals_are_sums_in_int64():
    """Holds that totals sum the layers, beyond 32 bits, as plain ints and without `reached`."""
    stats = Stats(2, torch.device("cpu"))
    stats.counters[:, 1:] = 2**31 - 1
    add(stats, 1, [[0]], [[1]], [True])
    assert stats.read()[1] == dict.fromkeys(COLUMNS[1:], 2**32 - 1)
    assert all(type(value) is int for value in stats.read()[1].values())


def test_counters_stay_in_place():
    """Holds that a captured graph keeps adding to the memory that is read."""
    stats = Stats(1, torch.device("cpu"))
    address = stats.counters.data_ptr()
    for dtype in (torch.int32, torch.int64):
        ids = torch.tensor([[0, 1]], dtype=dtype)
        stats.add(0, ids, ids, torch.tensor([True]), 8)
    assert stats.counters.data_ptr() == address and row(stats, 0)["calls"] == 2


def test_several_steps_add_up():
    """Holds that T of a layer is experts_after / calls over steps of different sizes."""
    stats = Stats(1, torch.device("cpu"))
    add(stats, 0, [[0, 1], [2, 3]], [[0, 1], [1, 0]], [True, True])
    add(stats, 0, [[4, 5]], [[4, 5]], [True])
    got = row(stats, 0)
    assert (got["calls"], got["rows"]) == (2, 3)
    assert (got["experts_before"], got["experts_after"], got["slots_rerouted"]) == (6, 4, 2)
