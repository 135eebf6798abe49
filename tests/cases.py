"""Whole rerouting problems for property tests: what a stock router saw and chose, and the settings.

hypothesis draws a seed and the structure, a seeded torch generator fills the tensors: drawing stays
fast, and a failure shrinks towards fewer rows and plainer settings. `cases(name=value)` pins a part
of the structure, `FAMILIES` pins what must not be left to chance.
"""

from dataclasses import dataclass, replace

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from sglang_oea.core.routing import reroute
from sglang_oea.core.scores import Router, from_logits

# tensors here are so small that a second thread only costs time
torch.set_num_threads(1)

# the same examples on every machine, however slow
CI = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

FAMILIES = {
    "anything": {},
    "softmax": {"scoring": "softmax", "spoilt": "none"},
    "sigmoid_with_bias": {"scoring": "sigmoid", "biased": True, "spoilt": "none"},
    "sqrtsoftplus": {"scoring": "sqrtsoftplus", "spoilt": "none"},
    "groups": {"num_expert_group": 4, "topk_group": 1, "kind": "normal"},
    "ties": {"kind": "quantised", "stock": "exact"},
    "all_equal": {"kind": "equal"},
    "signed_zeros": {"kind": "zeros"},
    "underflow": {"kind": "underflow", "spoilt": "none"},
    "padding": {"padding": "anywhere", "garbage": True},
    "spoilt_rows": {"spoilt": "both"},
    "service_levels": {"k0_kind": "row"},
    "offline_batches": {"batches": 3},
    "few_ranks": {"max_rank": True, "kind": "normal"},
}


@dataclass(frozen=True)
class Case:
    """The arguments of one call of `reroute`."""

    choice: torch.Tensor
    gate: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    k0: int | torch.Tensor
    renormalize: bool
    valid: torch.Tensor | None
    max_rank: int | None
    # what the scores came from, for a kernel that starts there
    logits: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    router: Router | None = None

    def run(self):
        return reroute(
            self.choice,
            self.gate,
            self.ids,
            self.weights,
            self.k0,
            renormalize=self.renormalize,
            valid=self.valid,
            max_rank=self.max_rank,
        )

    def parts(self):
        """The independent batches, each `[rows, ...]`, with k0 and valid spelled out a row."""
        rows = self.ids.shape[:-1]
        valid = torch.ones(rows, dtype=torch.bool) if self.valid is None else self.valid
        k0 = torch.as_tensor(self.k0).expand(rows)
        whole = (self.choice, self.gate, self.ids, self.weights, k0, valid)
        for part in zip(*whole, strict=True) if self.ids.dim() == 3 else [whole]:
            choice, gate, ids, weights, k0, valid = part
            yield Case(choice, gate, ids, weights, k0, self.renormalize, valid, self.max_rank)

    def select(self, rows):
        """These rows of a case from `parts`, in this order: an index or a bool mask."""
        names = ("choice", "gate", "ids", "weights", "k0", "valid")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def usable(self):
        """Valid rows that take part, `[rows]` bool: no NaN choice score, no negative id."""
        return self.valid & ~self.choice.isnan().any(-1) & ~(self.ids < 0).any(-1)


def plain(rows=2, **changes):
    """A small valid case: 8 experts, 2 slots."""
    scores = torch.linspace(1, 0.1, 8).expand(rows, 8)
    ids = torch.tensor([0, 1]).expand(rows, 2)
    case = Case(scores, scores, ids, torch.full((rows, 2), 0.5), 1, True, None, None)
    return replace(case, **changes)


@st.composite
def cases(draw, **pinned):
    """One case. Every name below can be pinned by keyword."""

    def pick(name, strategy):
        return pinned[name] if name in pinned else draw(strategy, label=name)

    groups = pick("num_expert_group", st.sampled_from([1, 1, 2, 4, 8]))
    topk_group = pick("topk_group", st.integers(1, groups))
    # a whole number of experts in each group
    experts = pick("experts", st.integers(8, 512)) // groups * groups
    slots = pick("slots", st.sampled_from(range(1, min(10, experts) + 1)))
    batches = pick("batches", st.sampled_from([None, None, None, 1, 2]))
    rows = pick("rows", st.sampled_from(range(1, 65)))
    fill = _Fill(pick("seed", st.integers(0, 2**32 - 1)), ([batches] if batches else []) + [rows])

    kind = pick("kind", st.sampled_from(["normal", "wide", "quantised", "underflow"]))
    dtype = pick("logits_dtype", st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    biased = pick("biased", st.booleans())
    scoring = pick("scoring", st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"]))
    logits = fill.logits(kind, experts).to(dtype)
    bias = fill.bias(kind, experts) if biased else None
    choice, gate = from_logits(
        logits,
        scoring,
        correction_bias=bias,
        num_expert_group=groups,
        topk_group=topk_group,
    )
    if kind == "zeros":
        choice = fill.signed_zeros(choice)

    stock = pick("stock", st.sampled_from(["exact", "exact", "near", "any"]))
    ids = fill.stock(stock, choice, slots, pick("ids_dtype", st.sampled_from(_ID_DTYPES)))
    renormalize = pick("renormalize", st.booleans())
    weights = gate.gather(-1, ids.long())
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * pick("routed_scaling_factor", st.sampled_from([1.0, 2.5]))
    weights = weights.to(pick("weights_dtype", st.sampled_from(_WEIGHT_DTYPES)))

    fill.spoil(pick("spoilt", st.sampled_from(_SPOILT)), choice, gate, ids, logits)
    valid = fill.valid(pick("padding", st.sampled_from(_PADDING)))
    if valid is not None and pick("garbage", st.booleans()):
        fill.garbage(~valid, choice, gate, ids, weights, logits)

    k0 = pick("k0", st.sampled_from(range(slots + 3)))
    k0_kind = pick("k0_kind", st.sampled_from(["int", "int", "scalar", "row", "batch"]))
    k0 = fill.k0(k0_kind, k0, slots, pick("k0_dtype", st.sampled_from(_ID_DTYPES)))
    limited = pick("max_rank", st.booleans())
    max_rank = draw(st.integers(1, experts if stock == "any" else 4 * slots)) if limited else None
    router = Router(scoring, slots, 0, renormalize, groups, topk_group, biased)
    scores = (choice, gate, ids, weights, k0, renormalize, valid, max_rank)
    return Case(*scores, logits, bias, router)


_ID_DTYPES = [torch.int32, torch.int64]
_WEIGHT_DTYPES = [torch.float32, torch.bfloat16]
_PADDING = [None, None, "no", "last", "last", "anywhere", "anywhere", "all"]
_SPOILT = ["none", "none", "none", "nan", "negative", "both"]


class _Fill:
    """Fills tensors for `shape` rows from one seeded generator."""

    def __init__(self, seed, shape):
        self.shape = shape
        self.generator = torch.Generator().manual_seed(seed)

    def rand(self, *size):
        return torch.rand(*self.shape, *size, generator=self.generator)

    def integers(self, low, high, *size):
        return torch.randint(low, high, (*self.shape, *size), generator=self.generator)

    def logits(self, kind, experts):
        noise = torch.randn(*self.shape, experts, generator=self.generator)
        # experts that all rows like, as in a real batch: without them nobody meets in the union
        noise = noise + torch.randn(experts, generator=self.generator)
        if kind == "wide":
            # saturates every scoring function at both ends
            return noise * 30
        if kind in ("quantised", "zeros"):
            return noise.round()
        if kind == "equal":
            return torch.full_like(noise, 0.5)
        if kind == "underflow":
            # a few experts near 0, the rest so low that most gate scores are 0 or denormal
            return noise * 5 - 100 * (self.rand(experts) < 0.95) - 60
        return noise

    def bias(self, kind, experts):
        bias = torch.randn(experts, generator=self.generator)
        # a bias that is not on a grid would break every tie; one of bfloat16 precision is common
        return bias.sign() if kind in ("quantised", "zeros", "equal") else bias.bfloat16()

    def signed_zeros(self, choice):
        dice = self.rand(choice.shape[-1])
        return choice.masked_fill(dice < 0.6, 0.0).masked_fill(dice < 0.3, -0.0)

    def stock(self, kind, choice, slots, dtype):
        """The router's own choice, columns in random order: ties may fall in any way."""
        if kind == "near":
            # a router that computes in another precision: near-ties fall otherwise
            choice = choice * (1 + 0.02 * self.rand(choice.shape[-1]))
        if kind == "any":
            choice = torch.zeros_like(choice)
        shuffled = self.rand(choice.shape[-1]).argsort(-1)
        order = choice.gather(-1, shuffled).sort(dim=-1, descending=True, stable=True).indices
        ids = shuffled.gather(-1, order[..., :slots])
        return ids.gather(-1, self.rand(slots).argsort(-1)).to(dtype)

    def spoil(self, kind, choice, gate, ids, logits):
        """Turn some rows into rows of invariant 10, in place."""
        slots = ids.shape[-1]
        if kind in ("nan", "both"):
            nan = (self.rand() < 0.2).unsqueeze(-1) & (self.rand(choice.shape[-1]) < 0.3)
            choice.masked_fill_(nan, torch.nan)
            gate.masked_fill_(nan, torch.nan)
            logits.masked_fill_(nan, torch.nan)
            # what a router picks from NaN need not be distinct
            ids.masked_fill_(nan.any(-1, keepdim=True) & (self.rand(1) < 0.5), 0)
        if kind in ("negative", "both"):
            ids.masked_fill_((self.rand(1) < 0.2) & (self.rand(slots) < 0.5), -1)

    def valid(self, padding):
        if padding is None:
            return None
        rows = torch.arange(self.shape[-1]).expand(self.shape)
        if padding == "last":
            real = torch.randint(
                self.shape[-1] + 1, (*self.shape[:-1], 1), generator=self.generator
            )
            return rows < real
        return self.rand() < {"no": 2.0, "anywhere": 0.6, "all": 0.0}[padding]

    def garbage(self, where, choice, gate, ids, weights, logits):
        """Overwrite about half of the rows of `where` with what no router returns, in place."""
        where = (where & (self.rand() < 0.5)).unsqueeze(-1)
        for tensor in (choice, gate, weights, logits):
            tensor.masked_fill_(where, torch.nan)
        # duplicates and -1; ids past N have a test of their own, under invariant 9
        junk = self.integers(-2, choice.shape[-1], ids.shape[-1])
        ids.copy_(torch.where(where, junk.to(ids.dtype), ids))

    def k0(self, kind, k0, slots, dtype):
        if kind == "row":
            return self.integers(0, slots + 3).to(dtype)
        if kind == "batch" and len(self.shape) == 2:
            return self.integers(0, slots + 3)[:, :1].to(dtype)
        return k0 if kind == "int" else torch.tensor(k0, dtype=dtype)
