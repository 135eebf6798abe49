"""`Rerouter` over time: k0 by rows and live, counters, and what it reports."""

import json
import random

import pytest
import torch
from stubs import Selection, TopKConfig, make_config, make_rerouter, open_gate

from sglang_oea.core.layer import Layer
from sglang_oea.core.version import __version__

KEYS = [
    *("version", "enabled", "impl", "k0", "modes", "layers"),
    *("calls", "rows", "experts_before", "experts_after", "slots_rerouted"),
]


def active(ids: list[list[int]], valid: list[bool]) -> int:
    """T: distinct experts of the valid rows."""
    return len({e for row, real in zip(ids, valid, strict=True) if real for e in row if e >= 0})


@pytest.mark.parametrize(("rows", "k0"), [(1, 0), (2, 3), (4, 3), (5, 1), (7, 1), (8, 0)])
def test_k0_by_valid_rows(rows, k0):
    """Holds that the schedule goes by real rows, not by the padded number of rows."""
    case = Selection(8, 16, TopKConfig(top_k=4))
    valid = [row < rows for row in range(8)]
    got, want = (
        make_rerouter(make_config(text), {0: case.config}) for text in ("2:3,5:1,8:0", "1")
    )
    want.set_k0(k0)
    for rerouter in (got, want):
        open_gate(rerouter, *valid)
    for left, right in zip(case.through(got), case.through(want), strict=True):
        assert torch.equal(left, right)
    stock = case.through(want)[1].equal(case.ids)
    # with a single real row the ids of padding would differ from stock, were k0 not 0
    assert stock == (k0 == 0)


def test_k0_by_layer(tmp_path):
    """Holds that each layer has its line, by id and not by position."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"k0": 1, "layers": {"9": 4}}))
    case = Selection(6, 16, TopKConfig(top_k=4))
    rerouter = make_rerouter(make_config(str(path)), dict.fromkeys((9, 3), case.config))
    open_gate(rerouter, *[True] * 6)
    assert not case.through(rerouter, 3)[1].equal(case.ids)
    assert rerouter.stats.read()[0] == [True, False]
    assert case.through(rerouter, 9)[1].equal(case.ids)
    assert rerouter.stats.read()[0] == [True, True]


def test_set_k0():
    """Holds that a live k0 changes the next call, in the memory that captured graphs read."""
    case = Selection(6, 16, TopKConfig(top_k=4))
    rerouter = make_rerouter(make_config("4:2"), {0: case.config})
    open_gate(rerouter, *[True] * 6)
    address = rerouter.k0_table.data_ptr()
    results = {}
    # beyond int32 too: any number of at least K is stock
    for k0 in (1, 2, 0, 4, 2**40, 1):
        rerouter.set_k0(k0)
        results[k0] = case.through(rerouter)[1]
        assert rerouter.report()["k0"] == k0 and rerouter.k0_table.data_ptr() == address
        reference = make_rerouter(make_config("3"), {0: case.config})
        reference.k0_table.fill_(min(k0, 9))
        open_gate(reference, *[True] * 6)
        assert results[k0].equal(case.through(reference)[1])
    assert not results[1].equal(results[2]) and results[0].equal(case.ids)


def test_set_k0_under_compile():
    """Holds that a compiled caller sees a live k0 without compiling again."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    case = Selection(6, 16, TopKConfig(top_k=4))
    rerouter = make_rerouter(make_config("1"), {0: case.config})
    open_gate(rerouter, *[True] * 6)
    torch._dynamo.reset()
    step = torch.compile(case.through, backend=backend, fullgraph=True)
    for calls, k0 in enumerate((1, 4, 0, 2), start=1):
        rerouter.set_k0(k0)
        got = step(rerouter)
        assert rerouter.stats.read()[1]["calls"] == calls
        want = case.through(rerouter)
        rerouter.stats.counters[:, 1:] //= 2
        rerouter.stats.counters[:, 1] = calls
        assert got[1].equal(want[1]) and got[0].equal(want[0]), k0
    assert len(compiled) == 1


def test_counters_against_sets():
    """Holds every counter, over random batches, against counting with python sets."""
    rng = random.Random(0)
    config = TopKConfig(top_k=4)
    layers = {3: config, 5: Layer(None, "left alone"), 8: config}
    rerouter = make_rerouter(make_config("2"), layers)
    want = dict.fromkeys(KEYS[6:], 0)
    for seed in range(60):
        case = Selection(rng.randint(1, 9), rng.choice([8, 20]), config, seed)
        if rng.random() < 0.2:
            # a row of invariant 10
            case.ids[rng.randrange(case.rows), rng.randrange(4)] = -1
        valid = [rng.random() < 0.7 for _ in range(case.rows)]
        open_gate(rerouter, *valid)
        layer_id = rng.choice([3, 5, 8, 100])
        before, after = case.ids.tolist(), case.through(rerouter, layer_id)[1].tolist()
        if layer_id not in (3, 8):
            continue
        want["calls"] += any(valid)
        want["rows"] += sum(valid)
        want["experts_before"] += active(before, valid)
        want["experts_after"] += active(after, valid)
        for old, new, real in zip(before, after, valid, strict=True):
            want["slots_rerouted"] += len(set(new) - set(old)) if real else 0
    report = rerouter.report()
    assert {name: report[name] for name in want} == want
    assert want["experts_after"] < want["experts_before"] and want["slots_rerouted"] > 0
    assert report["layers"] == {"moe": 3, "rerouted": 2}


@pytest.mark.parametrize("text", ["4", "1:8,8:5"])
def test_report(text):
    """Holds the documented keys and plain JSON, before anything ran too."""
    rerouter = make_rerouter(make_config(text, modes=("decode", "verify")))
    report = rerouter.report()
    assert list(report) == KEYS
    assert json.loads(json.dumps(report)) == report
    assert report == {
        "version": __version__,
        "enabled": True,
        "impl": "torch",
        "k0": 4 if text == "4" else text,
        "modes": ["decode", "verify"],
        "layers": {"moe": 1, "rerouted": 0},
        **dict.fromkeys(KEYS[6:], 0),
    }
