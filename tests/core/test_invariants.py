"""The ten invariants of the design, each a property of `reroute`'s output that needs no oracle."""

from dataclasses import dataclass, replace
from functools import cached_property

import pytest
import torch
from cases import CI, FAMILIES, cases, plain
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = settings(CI, max_examples=200)
EVERY_FAMILY = st.one_of(*(cases(**pinned) for pinned in FAMILIES.values()))


@dataclass
class Row:
    """A usable row with 0 < k0 < K: what went in, what came out, what the batch offered it."""

    choice: list
    gate: torch.Tensor
    stock: list
    stock_weights: torch.Tensor
    k0: int
    ids: list
    weights: torch.Tensor
    max_rank: int
    renormalize: bool
    # filled in once all rows of the batch are known
    union: frozenset = frozenset()

    @cached_property
    def place(self):
        """An expert's place in the row's ranking; 0 is the best."""
        order = sorted(range(len(self.choice)), key=lambda e: (-self.choice[e], e))
        return {expert: place for place, expert in enumerate(order)}

    @property
    def baseline(self):
        return set(sorted(self.stock, key=self.place.get)[: self.k0])

    @property
    def offer(self):
        """The experts of the union that the row may piggyback on."""
        allowed = {e for e in self.union - self.baseline if self.choice[e] != -torch.inf}
        return {e for e in allowed if self.place[e] < self.max_rank}

    @property
    def changed(self):
        return set(self.ids) != set(self.stock)


def outcomes(case):
    """Each independent batch with its results: (part, weights, ids)."""
    weights, ids = case.run()
    if ids.dim() == 2:
        weights, ids = weights.unsqueeze(0), ids.unsqueeze(0)
    return list(zip(case.parts(), weights, ids, strict=True))


def active_rows(case):
    """The rows that rerouting may change."""
    slots = case.ids.shape[-1]
    for part, weights, ids in outcomes(case):
        rows = [
            Row(
                choice=part.choice[r].tolist(),
                gate=part.gate[r],
                stock=part.ids[r].tolist(),
                stock_weights=part.weights[r],
                k0=int(part.k0[r]),
                ids=ids[r].tolist(),
                weights=weights[r],
                max_rank=part.max_rank or part.choice.shape[-1],
                renormalize=part.renormalize,
            )
            for r in part.usable().nonzero().flatten().tolist()
        ]
        union = frozenset().union(*(row.baseline for row in rows))
        for row in rows:
            row.union = union
        yield from (row for row in rows if 0 < row.k0 < slots)


def same_bits(got, want):
    """Equal as bits, so that NaN equals itself and 0.0 differs from -0.0."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return got.dtype == want.dtype and torch.equal(got.view(integer), want.view(integer))


def activated(ids, rows):
    """The experts that these rows, a bool mask, load."""
    return {e for e in ids[rows].flatten().tolist() if e >= 0}


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_01_rank(case):
    """Holds explicit ranking: a changed row is ranked in each of its parts, ties by lower id."""
    for row in active_rows(case):
        if row.changed:
            offer = row.offer
            part = [0 if e in row.baseline else 1 if e in offer else 2 for e in row.ids]
            keys = [(p, -row.choice[e], e) for p, e in zip(part, row.ids, strict=True)]
            assert keys == sorted(keys)


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_01_rank_ignores_columns(case):
    """Holds that the order of the stock columns means nothing."""
    for part, _, ids in outcomes(case):
        flipped = replace(part, ids=part.ids.flip(-1), weights=part.weights.flip(-1))
        flipped_ids = flipped.run()[1]
        assert torch.equal(flipped_ids.sort(-1).values, ids.sort(-1).values)


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_02_baseline(case):
    """Holds that a row keeps its k0 best experts, out of its own stock ids and nothing else."""
    for row in active_rows(case):
        assert row.baseline <= set(row.ids)
        if row.changed:
            kept = row.ids[: row.k0]
            assert set(kept) <= set(row.stock)
            worst = max(row.place[e] for e in kept)
            assert all(row.place[e] > worst for e in set(row.stock) - set(kept))


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_03_piggyback(case):
    """Holds that foreign experts are of the union, not at -inf, not past max_rank, best first."""
    for row in active_rows(case):
        offer, ids = row.offer, set(row.ids)
        assert ids - set(row.stock) <= offer
        missed, taken = offer - ids, offer & ids
        # nothing better was left behind for it
        assert all(row.place[m] > row.place[t] for m in missed for t in taken)
        # and nothing at all while slots were free
        assert not missed or len(taken) == len(row.ids) - row.k0


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_04_completion(case):
    """Holds that a row has K distinct real experts, completed by the best of its own."""
    for row in active_rows(case):
        assert len(set(row.ids)) == len(row.ids) == len(row.stock)
        assert all(0 <= e < len(row.choice) for e in row.ids)
        rest = set(row.stock) - row.baseline - row.offer
        completing = set(row.ids) - row.baseline - row.offer
        assert completing <= rest
        left = rest - completing
        assert all(row.place[c] < row.place[x] for c in completing for x in left)


@EXAMPLES
@given(cases(batches=None))
def test_invariant_04_one_row_alone_is_stock(case):
    """Holds that nobody to share with means stock routing: each row as a batch of its own."""
    (case,) = case.parts()
    names = ("choice", "gate", "ids", "weights", "k0", "valid")
    weights, ids = replace(case, **{name: getattr(case, name).unsqueeze(1) for name in names}).run()
    assert same_bits(ids.squeeze(1), case.ids)
    assert same_bits(weights.squeeze(1), case.weights)


@EXAMPLES
@given(cases(spoilt="none") | cases(**FAMILIES["underflow"]))
def test_invariant_05_weights(case):
    """Holds that weights are gate scores at the row's own scale, for both kinds of router."""
    for row in active_rows(case):
        if row.changed:
            scored = row.ids if row.renormalize else row.stock
            scale = row.stock_weights.double().sum() / (row.gate[scored].double().sum() + 1e-20)
            want = (row.gate[row.ids].double() * scale).to(row.weights.dtype)
            # one unit in the last place of bfloat16
            rtol = 2**-7 if want.dtype == torch.bfloat16 else 1e-6
            torch.testing.assert_close(row.weights, want, rtol=rtol, atol=1e-12)


@EXAMPLES
@given(cases(spoilt="none", kind="normal", weights_dtype=torch.float32))
def test_invariant_05_scale_is_kept(case):
    """Holds the scale without its formula: the sum is kept, or else each kept expert's weight."""
    for row in active_rows(case):
        if row.renormalize:
            torch.testing.assert_close(row.weights.sum(), row.stock_weights.sum())
        else:
            before = dict(zip(row.stock, row.stock_weights.tolist(), strict=True))
            after = dict(zip(row.ids, row.weights.tolist(), strict=True))
            for expert in before.keys() & after.keys():
                assert after[expert] == pytest.approx(before[expert], rel=2e-6)


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_06_identity(case):
    """Holds that a row with its stock set, or with k0 >= K, comes back bit for bit."""
    slots = case.ids.shape[-1]
    for part, weights, ids in outcomes(case):
        same = (ids.sort(-1).values == part.ids.sort(-1).values).all(-1)
        kept = part.valid & (same | (part.k0 >= slots))
        assert same_bits(ids[kept], part.ids[kept])
        assert same_bits(weights[kept], part.weights[kept])
        # off, padding included
        off = part.k0 == 0
        assert same_bits(ids[off], part.ids[off])
        assert same_bits(weights[off], part.weights[off])


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_07_t_never_rises(case):
    """Holds that no expert is loaded that stock would not load, and that T reaches |union|."""
    for part, _, ids in outcomes(case):
        before, after = activated(part.ids, part.valid), activated(ids, part.valid)
        assert after <= before

        rows = list(active_rows(part))
        all_took_part = len(rows) == int(part.valid.sum())
        none_completed = all(len(row.offer) >= len(row.ids) - row.k0 for row in rows)
        if rows and all_took_part and none_completed:
            assert after == rows[0].union


@EXAMPLES
@given(EVERY_FAMILY)
def test_invariant_08_rows_are_equal(case):
    """Holds that the place of a row in the batch does not matter to any valid row."""
    for part, weights, ids in outcomes(case):
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
        moved_weights, moved_ids = part.select(order).run()
        real = part.valid[order]
        assert same_bits(moved_ids[real], ids[order][real])
        assert same_bits(moved_weights[real], weights[order][real])


@EXAMPLES
@given(cases(padding="anywhere"))
def test_invariant_08_invalid_rows_are_not_seen(case):
    """Holds that no row's result depends on what an invalid row holds, or on its being there."""
    for part, weights, ids in outcomes(case):
        real = part.valid
        alone_weights, alone_ids = part.select(real).run()
        assert same_bits(alone_ids, ids[real])
        assert same_bits(alone_weights, weights[real])

        pad = (~real).unsqueeze(-1)
        other = replace(
            part,
            choice=part.choice.masked_fill(pad, 1e30),
            gate=part.gate.masked_fill(pad, 1e30),
            ids=torch.where(pad, torch.arange(ids.shape[-1]), part.ids).to(ids.dtype),
            weights=part.weights.masked_fill(pad, 7.0),
        )
        other_weights, other_ids = other.run()
        # an invalid row that keeps what it held is no result of rerouting
        result = real if not part.usable().any() else real | (part.k0 > 0)
        assert same_bits(other_ids[result], ids[result])
        assert same_bits(other_weights[result], weights[result])


@EXAMPLES
@given(cases(padding="anywhere") | cases(padding="all"))
def test_invariant_09_invalid_rows_activate_nothing(case):
    """Holds that padding follows the first usable row at weight 0, or stays where there is none."""
    for part, weights, ids in outcomes(case):
        usable = part.usable().nonzero().flatten().tolist()
        padding = ~part.valid & (part.k0 > 0)
        if usable:
            assert (ids[padding] == ids[usable[0]]).all()
            assert (weights[padding] == 0).all()
            assert activated(ids, padding) <= activated(ids, part.valid)
        else:
            assert same_bits(ids, part.ids)
            assert same_bits(weights, part.weights)


def test_invariant_09_padding_may_hold_ids_past_n():
    """Holds 'whatever it held': an uninitialised row must not index out of bounds."""
    ids = torch.tensor([[0, 1], [8, 10**6]])
    case = replace(plain(), ids=ids, valid=torch.tensor([True, False]))
    assert case.run()[1].tolist() == [[0, 1], [0, 1]]


@EXAMPLES
@given(cases(spoilt="both"))
def test_invariant_10_nan_and_negative_ids_pass_through(case):
    """Holds that such a row is untouched, and that the others fare as if it were not there."""
    for part, weights, ids in outcomes(case):
        spoilt = part.valid & ~part.usable()
        assert same_bits(ids[spoilt], part.ids[spoilt])
        assert same_bits(weights[spoilt], part.weights[spoilt])
        if part.usable().any():
            without_weights, without_ids = part.select(~spoilt).run()
            assert same_bits(without_ids, ids[~spoilt])
            assert same_bits(without_weights, weights[~spoilt])
