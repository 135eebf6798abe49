"""The gate: for which forwards it opens, for which rows, and that it always closes again."""

import inspect

import pytest
import torch
from stubs import Batch, Mode, assert_refusal, make_config

from sglang_oea.core.gate import Gate, first_rows_valid

BOTH = ("decode", "verify")


class Model:
    """A model with SGLang's kind of forward; notes what the gate held while it ran."""

    def __init__(self, gate: Gate):
        self.gate = gate
        self.seen: list[torch.Tensor | None] = []
        self.fails = False

    def forward(
        self, input_ids: torch.Tensor, positions: int, forward_batch: Batch, embeds: object = None
    ) -> tuple:
        """As in SGLang: the batch is the third parameter."""
        self.seen.append(self.gate.open_rows)
        if self.fails:
            raise ValueError("out of memory")
        return input_ids, positions, forward_batch, embeds


def gated(**settings: object) -> tuple[Model, list[torch.Tensor | None]]:
    """A model behind a gate, and what the gate held at each call of `after`."""
    gate = Gate(make_config(**settings))
    model, after = Model(gate), []
    model.forward = gate.wrap(model.forward, lambda: after.append(gate.open_rows))
    return model, after


@pytest.mark.parametrize(
    ("modes", "mode", "opens"),
    [
        (("decode",), "decode", True),
        (("decode",), "verify", False),
        (("verify",), "decode", False),
        (("verify",), "verify", True),
        (BOTH, "decode", True),
        (BOTH, "verify", True),
        *((BOTH, mode, False) for mode in ("extend", "mixed", "idle", "draft_extend")),
    ],
)
def test_modes(modes, mode, opens):
    """Holds which forwards are rerouted: `after` is called once for these, with the gate closed."""
    model, after = gated(modes=modes)
    batch = Batch.of(mode, 7, 9)
    assert model.forward("ids", 1, batch) == ("ids", 1, batch, None)
    assert [rows is not None for rows in model.seen] == [opens]
    assert after == ([None] if opens else [])
    assert model.gate.open_rows is None


@pytest.mark.parametrize(("modes", "opened"), [(("decode",), {"DECODE"}), (BOTH, None)])
def test_modes_of_sglang(modes, opened):
    """Holds that of all forward modes of SGLang only decode (and verify) open the gate."""
    info = pytest.importorskip("sglang.srt.model_executor.forward_batch_info")
    model, _ = gated(modes=modes)
    got = set()
    for mode in info.ForwardMode:
        model.forward(0, 0, Batch(mode, torch.tensor([3])))
        if model.seen[-1] is not None:
            got.add(mode.name)
    assert got == (opened or {"DECODE", "TARGET_VERIFY"})


def test_padding_rows_are_not_valid():
    """Holds that rows whose KV slot is the reserved slot 0 are padding."""
    model, _ = gated()
    model.forward(0, 0, Batch.of("decode", 5, 0, 12, 1, 0))
    assert model.seen[0].dtype == torch.bool
    assert model.seen[0].tolist() == [True, False, True, True, False]


@pytest.mark.parametrize(("rows", "opens"), [(0, False), (1, True), (4, True), (5, False)])
def test_number_of_rows(rows, opens):
    """Holds that the padded number of rows decides, so that a captured graph is decided once."""
    model, after = gated(max_rows=4)
    # one real row, the others are padding
    model.forward(0, 0, Batch.of("decode", *[3, 0, 0, 0, 0][:rows]))
    assert (model.seen[0] is not None, len(after)) == (opens, int(opens))


def test_an_idle_batch_without_slots():
    """Holds that a batch of another mode is not looked into: its `out_cache_loc` can be None."""
    model, _ = gated()
    model.forward(0, 0, Batch(Mode("idle"), None))
    assert model.seen == [None]


def test_closed_after_an_exception():
    """Holds that a failing forward leaves the gate closed and raises its own error."""
    model, after = gated()
    model.fails = True
    with pytest.raises(ValueError, match="out of memory"):
        model.forward(0, 0, Batch.of("decode", 3))
    assert model.seen[0] is not None
    assert model.gate.open_rows is None and after == []
    # the next prefill must not inherit an open gate
    model.fails = False
    model.forward(0, 0, Batch.of("extend", 3))
    assert model.seen[1] is None


def test_an_error_of_after_leaves_the_gate_closed():
    """Holds that a refusal after the first forward reaches the host."""
    gate = Gate(make_config())

    def refuse():
        raise SystemExit("nothing was rerouted")

    forward = gate.wrap(Model(gate).forward, refuse)
    with pytest.raises(SystemExit, match="nothing was rerouted"):
        forward(0, 0, Batch.of("decode", 3))
    assert gate.open_rows is None


def test_keyword_and_positional():
    """Holds that the batch is found however the runner passes it, and that arguments go through."""
    model, after = gated()
    batch = Batch.of("decode", 3)
    assert model.forward(1, 2, batch, "e") == (1, 2, batch, "e")
    assert model.forward(1, 2, forward_batch=batch) == (1, 2, batch, None)
    assert model.forward(input_ids=1, positions=2, forward_batch=batch, embeds=3)[3] == 3
    assert len(after) == 3 and all(rows is not None for rows in model.seen)


def test_signature_is_kept():
    """Holds that SGLang, which inspects a model's forward, still sees the original."""
    plain, (wrapped, _) = Model(Gate(make_config())), gated()
    assert inspect.signature(wrapped.forward) == inspect.signature(plain.forward)
    assert wrapped.forward.__name__ == "forward"
    assert wrapped.forward.__doc__ == plain.forward.__doc__


def test_forward_without_a_batch_is_refused():
    """Holds that a model which cannot be watched is refused, not served as stock."""

    def forward(input_ids, batch):
        return input_ids

    with pytest.raises(SystemExit) as refusal:
        Gate(make_config()).wrap(forward, lambda: None)
    assert_refusal(refusal.value, "parameters input_ids, batch", "a parameter forward_batch")


@pytest.mark.parametrize("count", [0, 2, 4])
def test_first_rows_valid(count):
    """Holds that SGLang's `num_token_non_padded`, `[]` or `[1]`, counts rows from the first."""
    for tensor in (torch.tensor(count), torch.tensor([count], dtype=torch.int32)):
        got = first_rows_valid(4, tensor)
        assert got.dtype == torch.bool and got.tolist() == [row < count for row in range(4)]
