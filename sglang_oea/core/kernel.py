"""`from_logits`, `reroute` and `stats.Stats.add` in one Triton launch.

No behaviour of its own: the reference is the specification. One program serves one row. There is no
grid-wide barrier: every program recomputes the union from all rows' stock ids, which are a few
thousand integers in cache, and results go to fresh tensors, so nothing is read that another program
writes. T after rerouting does need all rows: each program marks its experts in `scratch`, and the
one that finishes last counts the marks and clears them for the next launch.

Two rows must never disagree on what one of them lends, so every choice score is computed
elementwise in one way, wherever it is needed; a softmax ranks by `exp(x - max)`, before the
division by a sum whose rounding would depend on the layout.
"""

import triton
import triton.language as tl

from .routing import RENORMALIZE_EPSILON

# places in scores.SCORING_FUNCTIONS
SOFTMAX, SIGMOID = tl.constexpr(0), tl.constexpr(1)
_EPSILON = tl.constexpr(RENORMALIZE_EPSILON)
# more rows than any batch has; the place of a first sound row that is not there
_NO_ROW = tl.constexpr(1 << 30)


@triton.jit
def _gate_score(x, SCORING: tl.constexpr):
    """Elementwise, float32; for softmax the caller has subtracted the row's maximum."""
    if SCORING == SOFTMAX:
        return tl.exp(x)
    if SCORING == SIGMOID:
        return 1.0 / (1.0 + tl.exp(-x))
    small = tl.exp(-tl.abs(x))
    # log1p(small): what rounding did to 1 + small is undone by the quotient (Kahan)
    above = 1.0 + small
    log1p = tl.where(above == 1.0, small, tl.log(above) * (small / (above - 1.0)))
    softplus = tl.maximum(x, 0.0) + log1p
    return tl.sqrt_rn(softplus)


@triton.jit
def _kept_groups(choice, ROWS: tl.constexpr, N: tl.constexpr, G: tl.constexpr, KEEP, BIASED):
    """`[ROWS, G]` bool: the groups a row may choose from."""
    grouped = tl.reshape(choice, [ROWS, G, N // G])
    best = tl.max(grouped, axis=2)
    score = best
    if BIASED:
        lane = tl.arange(0, N // G)[None, None, :]
        first = tl.min(tl.where(grouped == best[:, :, None], lane, N), axis=2)
        rest = tl.where(lane == first[:, :, None], float("-inf"), grouped)
        score = best + tl.max(rest, axis=2)
    group = tl.arange(0, G)
    other, mine = score[:, None, :], score[:, :, None]
    ahead = (other > mine) | ((other == mine) & (group[None, None, :] < group[None, :, None]))
    return tl.sum(ahead.to(tl.int32), axis=2) < KEEP


@triton.jit
def _place(score, ids, in_slot):
    """`[ROWS, SLOTS]`: how many of a row's own slots rank before each; ties to the lower id."""
    mine, other = score[:, :, None], score[:, None, :]
    ahead = (other > mine) | ((other == mine) & (ids[:, None, :] < ids[:, :, None]))
    return tl.sum((ahead & in_slot[:, None, :]).to(tl.int32), axis=2)


@triton.jit
def _rows(
    row,
    row_exists,
    logits_ptr,
    logits_stride,
    bias_ptr,
    ids_ptr,
    ids_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    SCORING: tl.constexpr,
    BIASED: tl.constexpr,
    GROUPS: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What is known of `ROWS` rows: all experts' scores, own slots and places, soundness."""
    expert, slot = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    is_expert = row_exists[:, None] & (expert[None, :] < N)
    x = tl.load(
        logits_ptr + row[:, None] * logits_stride + expert[None, :], mask=is_expert, other=0.0
    ).to(tl.float32)
    broken = tl.max((is_expert & (x != x)).to(tl.int32), axis=1) > 0
    top = tl.max(tl.where(is_expert, x, float("-inf")), axis=1)
    if SCORING == SOFTMAX:
        # what softmax makes of it: inf - inf
        broken = broken | (top == float("inf")) | (top == float("-inf"))
        x = x - top[:, None]
    gate = tl.where(is_expert, _gate_score(x, SCORING), 0.0)
    choice = gate
    if BIASED:
        bias = tl.load(bias_ptr + expert, mask=expert < N, other=0.0).to(tl.float32)
        choice = gate + bias[None, :]
        broken = broken | (tl.max((bias != bias).to(tl.int32), axis=0) > 0)

    is_slot = row_exists[:, None] & (slot[None, :] < K)
    ids = tl.load(ids_ptr + row[:, None] * ids_stride + slot[None, :], mask=is_slot, other=0)
    ids = ids.to(tl.int32)
    negative = tl.max((is_slot & (ids < 0)).to(tl.int32), axis=1) > 0
    # a row that is not sound may hold anything, and is not read below
    readable = is_slot & (ids >= 0) & (ids < N)
    own_x = tl.load(logits_ptr + row[:, None] * logits_stride + ids, mask=readable, other=0.0).to(
        tl.float32
    )
    if SCORING == SOFTMAX:
        own_x = own_x - top[:, None]
    own_gate = _gate_score(own_x, SCORING)
    own_choice = own_gate
    if BIASED:
        own_choice = own_gate + tl.load(bias_ptr + ids, mask=readable, other=0.0).to(tl.float32)
    if GROUPS > 1:
        kept = _kept_groups(choice, ROWS, N, GROUPS, TOPK_GROUP, BIASED)
        group = tl.arange(0, GROUPS)
        mine = group[None, None, :] == (ids // (N // GROUPS))[:, :, None]
        allowed = tl.max((mine & kept[:, None, :]).to(tl.int32), axis=2) > 0
        own_choice = tl.where(allowed, own_choice, float("-inf"))
        shaped = tl.reshape(choice, [ROWS, GROUPS, N // GROUPS])
        choice = tl.reshape(tl.where(kept[:, :, None], shaped, float("-inf")), [ROWS, N])
    place = _place(own_choice, ids, is_slot)
    return gate, choice, ids, readable, place, own_gate, ~(broken | negative)


@triton.jit
def reroute_kernel(
    logits_ptr,
    logits_stride,
    bias_ptr,
    ids_ptr,
    ids_stride,
    weights_ptr,
    weights_stride,
    valid_ptr,
    k0_ptr,
    out_ids_ptr,
    out_weights_ptr,
    counters_ptr,
    scratch_ptr,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SCORING: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    MAX_RANK: tl.constexpr,
    K0_BY_ROW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a row, in any order; arguments and constants as in `launch.py`."""
    me = tl.program_id(0)
    expert, slot = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    lane = tl.arange(0, TILE)

    valid_rows = 0
    for start in range(0, rows, TILE):
        row = start + lane
        real = tl.load(valid_ptr + row, mask=row < rows, other=0).to(tl.int32)
        valid_rows += tl.sum((real != 0).to(tl.int32), axis=0)

    # the union of all baselines, the experts of the stock selection, and the first sound row
    lent = tl.zeros([BLOCK_N], tl.int32)
    stock = tl.zeros([BLOCK_N], tl.int32)
    first_sound = _NO_ROW
    i_am_sound = 0
    for start in range(0, rows, TILE):
        row = start + lane
        exists = row < rows
        real = tl.load(valid_ptr + row, mask=exists, other=0).to(tl.int32) != 0
        _, _, ids, readable, place, _, intact = _rows(
            row,
            exists,
            logits_ptr,
            logits_stride,
            bias_ptr,
            ids_ptr,
            ids_stride,
            N,
            K,
            SCORING,
            BIASED,
            GROUPS,
            TOPK_GROUP,
            BLOCK_N,
            BLOCK_K,
            TILE,
        )
        sound = exists & real & intact
        if K0_BY_ROW:
            k0 = tl.load(k0_ptr + row, mask=exists, other=0).to(tl.int32)
        else:
            k0 = tl.zeros([TILE], tl.int32) + tl.load(k0_ptr + valid_rows).to(tl.int32)
        baseline = readable & sound[:, None] & (place < k0[:, None])
        flat = tl.reshape(tl.where(readable, ids, 0), [TILE * BLOCK_K])
        lent += tl.histogram(flat, BLOCK_N, mask=tl.reshape(baseline, [TILE * BLOCK_K]))
        held = tl.reshape(readable & real[:, None], [TILE * BLOCK_K])
        stock += tl.histogram(flat, BLOCK_N, mask=held)
        first_sound = tl.minimum(first_sound, tl.min(tl.where(sound, row, _NO_ROW), axis=0))
        i_am_sound += tl.sum((sound & (row == me)).to(tl.int32), axis=0)

    real = tl.load(valid_ptr + me).to(tl.int32) != 0
    has_model = first_sound < _NO_ROW
    # a padding row does the work of the first sound row over again, to end with the same ids
    work = tl.where(real, me, tl.where(has_model, first_sound, me))
    if K0_BY_ROW:
        my_k0 = tl.load(k0_ptr + me).to(tl.int32)
        k0 = tl.load(k0_ptr + work).to(tl.int32)
    else:
        my_k0 = tl.load(k0_ptr + valid_rows).to(tl.int32)
        k0 = my_k0
    one = tl.arange(0, 1)
    gate, choice, ids, readable, place, own_gate, _ = _rows(
        work + one,
        one == 0,
        logits_ptr,
        logits_stride,
        bias_ptr,
        ids_ptr,
        ids_stride,
        N,
        K,
        SCORING,
        BIASED,
        GROUPS,
        TOPK_GROUP,
        BLOCK_N,
        BLOCK_K,
        1,
    )
    gate, choice = tl.reshape(gate, [BLOCK_N]), tl.reshape(choice, [BLOCK_N])
    ids, readable = tl.reshape(ids, [BLOCK_K]), tl.reshape(readable, [BLOCK_K])
    place, own_gate = tl.reshape(place, [BLOCK_K]), tl.reshape(own_gate, [BLOCK_K])

    # [BLOCK_K, BLOCK_N]: which slot holds which expert
    holds = readable[:, None] & (ids[:, None] == expert[None, :])
    own = tl.max(holds.to(tl.int32), axis=0) > 0
    in_baseline = tl.max((holds & (place < k0)[:, None]).to(tl.int32), axis=0) > 0

    # one integer an expert, larger first: tier, then choice score, then the lower id
    bits = choice.to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000
    rank_key = tl.where(expert < N, (ordered << 16) | (0xFFFF - expert).to(tl.int64), -1)
    piggyback = (lent > 0) & (choice != float("-inf"))
    if MAX_RANK < N:
        # the key of rank MAX_RANK - 1, bit by bit: a sort would cost far more registers
        last = tl.full([], 0, tl.int64)
        for bit in range(48):
            raised = last | (tl.full([], 1, tl.int64) << (47 - bit))
            enough = tl.sum((rank_key >= raised).to(tl.int32), axis=0) >= MAX_RANK
            last = tl.where(enough, raised, last)
        piggyback = piggyback & (rank_key >= last)
    tier = tl.where(in_baseline, 3, tl.where(piggyback, 2, tl.where(own, 1, 0)))
    key = tl.where(expert < N, (tier.to(tl.int64) << 48) | rank_key, -1)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    for k in tl.static_range(K):
        best = tl.max(key, axis=0)
        chosen = tl.where(slot == k, 0xFFFF - (best & 0xFFFF).to(tl.int32), chosen)
        key = tl.where(key == best, -1, key)

    in_slot = slot < K
    same = (chosen[:, None] == ids[None, :]) & readable[None, :]
    is_new = in_slot & (tl.max(same.to(tl.int32), axis=1) == 0)
    moved = tl.sum(is_new.to(tl.int32), axis=0)

    picked = chosen[:, None] == expert[None, :]
    chosen_gate = tl.sum(tl.where(picked & in_slot[:, None], gate[None, :], 0.0), axis=1)
    own_gate = tl.where(readable, own_gate, 0.0)
    if SCORING == SOFTMAX:
        total = tl.sum(gate, axis=0)
        chosen_gate, own_gate = chosen_gate / total, own_gate / total
    divisor = tl.sum(chosen_gate if RENORMALIZE else own_gate, axis=0) + _EPSILON

    in_row = slot < WIDTH
    weights_of = weights_ptr + work * weights_stride + slot
    old = tl.sum(tl.load(weights_of, mask=in_slot, other=0.0).to(tl.float32), axis=0)
    my_ids = tl.load(ids_ptr + me * ids_stride + slot, mask=in_row, other=0)
    my_weights = tl.load(weights_ptr + me * weights_stride + slot, mask=in_row, other=0.0)
    stock_ids = tl.load(ids_ptr + work * ids_stride + slot, mask=in_slot, other=0)

    changes = (k0 > 0) & (k0 < K) & (moved > 0)
    rerouted = real & (i_am_sound > 0) & changes
    padded = (real == 0) & has_model & (my_k0 > 0)
    new_weights = (chosen_gate * (old / divisor)).to(my_weights.dtype)
    model_ids = tl.where(changes, chosen.to(stock_ids.dtype), stock_ids)
    out_ids = tl.where(in_slot & (rerouted | padded), model_ids, my_ids)
    out_weights = tl.where(in_slot & rerouted, new_weights, my_weights)
    # a zero of its own: what the row held may be NaN, and stays NaN times anything
    out_weights = tl.where(in_slot & padded, tl.zeros_like(my_weights), out_weights)
    tl.store(out_ids_ptr + me * WIDTH + slot, out_ids, mask=in_row)
    tl.store(out_weights_ptr + me * WIDTH + slot, out_weights, mask=in_row)

    if rerouted:
        tl.atomic_add(counters_ptr + 5, moved.to(tl.int64), sem="relaxed")
    final = out_ids.to(tl.int32)
    marks = in_slot & real & (final >= 0) & (final < N)
    tl.atomic_max(scratch_ptr + final, 1, mask=marks, sem="relaxed")
    # all marks of this program are out before its row counts as done
    tl.debug_barrier()
    done = tl.atomic_add(scratch_ptr + N, 1, sem="acq_rel")
    if done == rows - 1:
        marked = tl.load(scratch_ptr + expert, mask=expert < N, other=0)
        after = tl.sum((marked > 0).to(tl.int32), axis=0)
        before = tl.sum((stock > 0).to(tl.int32), axis=0)
        column = tl.arange(0, 8)
        step = tl.where(column == 0, 1, 0) + tl.where(column == 2, valid_rows, 0)
        step += tl.where(column == 1, (valid_rows > 0).to(tl.int32), 0)
        step += tl.where(column == 3, before, 0) + tl.where(column == 4, after, 0)
        sums = tl.load(counters_ptr + column, mask=column < 5, other=0)
        tl.store(counters_ptr + column, sums + step.to(tl.int64), mask=column < 5)
        tl.store(scratch_ptr + expert, 0, mask=expert < N)
        tl.store(scratch_ptr + N, 0)
