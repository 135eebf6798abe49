"""The first rung: Opportunistic Expert Activation over python lists, sets and floats.

Written from the design alone. No torch, no shortcut: every rule stands beside the number of its
invariant. Floats are double precision here, so weights are compared to a tolerance; ids exactly.
What is not said here: dtypes, devices, groups of batches. A batch is one list of rows.
"""

import math
import struct

# SGLang's guard against a division by zero
EPSILON = 1e-20


def reroute(choice, gate, ids, weights, k0s, *, renormalize, valid, max_rank):
    """One batch, `k0s` and `valid` with one entry a row; returns (weights, ids) as new lists."""
    rows, slots = range(len(ids)), len(ids[0]) if ids else 0

    # 10: a valid row with a NaN choice score or a negative id only passes through
    usable = [r for r in rows if valid[r] and not (_has_nan(choice[r]) or min(ids[r]) < 0)]

    # 1: higher choice score first, on equal scores the lower id
    ranking = {r: sorted(range(len(choice[r])), key=lambda e: (-choice[r][e], e)) for r in usable}
    # 2: the first k0, in rank, of the row's own stock ids
    stock = {r: sorted(ids[r], key=ranking[r].index) for r in usable}
    baseline = {r: stock[r][: k0s[r]] for r in usable}
    # the union holds the baselines of valid rows only; a row with k0 = 0 lends nothing
    union = {e for r in usable for e in baseline[r]}

    new_ids, new_weights = [list(row) for row in ids], [list(row) for row in weights]
    for r in usable:
        # 6: k0 = 0 is off, k0 >= K is stock
        if k0s[r] == 0 or k0s[r] >= slots:
            continue
        chosen = list(baseline[r])
        # 3: best-ranked experts of the union, over the first max_rank, never one at -inf
        for e in ranking[r][:max_rank]:
            if e in union and e not in baseline[r] and choice[r][e] > -math.inf:
                chosen.append(e)
        chosen = chosen[:slots]
        # 4: completed by the row's own remaining stock ids, in rank
        remaining = [e for e in stock[r] if e not in chosen]
        chosen += remaining[: slots - len(chosen)]
        # 6: the stock set again, so nothing is touched, columns included
        if set(chosen) == set(ids[r]):
            continue
        new_ids[r] = chosen
        new_weights[r] = _weights(gate[r], ids[r], chosen, weights[r], renormalize)

    # 9: invalid rows follow the first usable row, with weight 0; k0 = 0 is off for them too (6)
    for r in rows:
        if not valid[r] and usable and k0s[r] != 0:
            new_ids[r], new_weights[r] = list(new_ids[usable[0]]), [0.0] * slots
    return new_weights, new_ids


def _weights(gate, old_ids, new_ids, old_weights, renormalize):
    """5: gate scores of the chosen experts, at the scale that the row's own weights had."""
    of = new_ids if renormalize else old_ids
    scale = math.fsum(old_weights) / (math.fsum(gate[e] for e in of) + EPSILON)
    return [gate[e] * scale for e in new_ids]


def active(ids, valid):
    """The distinct experts of the valid rows; T is how many. Negative ids do not count (7)."""
    return {e for row, real in zip(ids, valid, strict=True) if real for e in row if e >= 0}


def gate_scores(logits, scoring):
    """One row of router logits -> gate scores: no bias, no groups."""
    if scoring == "softmax":
        top = math.nan if _has_nan(logits) else max(logits)
        exps = [math.exp(x - top) for x in logits]
        return [x / math.fsum(exps) for x in exps]
    return [{"sigmoid": _sigmoid, "sqrtsoftplus": _sqrtsoftplus}[scoring](x) for x in logits]


def choice_scores(gate, bias=None, num_expert_group=1, topk_group=1):
    """One row of gate scores -> choice scores: with bias, -inf outside the best groups.

    Each sum is rounded to float32, so that float32 gate scores give the very same groups.
    """
    choice = list(gate) if bias is None else [_f32(g + b) for g, b in zip(gate, bias, strict=True)]
    size = len(choice) // num_expert_group
    groups = [choice[i : i + size] for i in range(0, len(choice), size)]
    # with bias the two best of a group speak for it, without bias the best one
    best = 1 if bias is None else 2
    score = [_f32(sum(sorted(group, reverse=True)[:best])) for group in groups]
    # on equal scores the lower group
    kept = sorted(range(len(groups)), key=lambda g: (-score[g], g))[:topk_group]
    return [x if e // size in kept else -math.inf for e, x in enumerate(choice)]


def _sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _sqrtsoftplus(x):
    return math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x))))


def _has_nan(row):
    return any(math.isnan(x) for x in row)


def _f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]
