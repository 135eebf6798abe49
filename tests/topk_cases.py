"""The topk cases: a router, a batch and a setting, and what `select_experts` must then return.

One set for every host: the plugin and each patched release. Nothing here comes from a host: the
stock selection is the router's formula written out over python lists, and what OEA makes of it is
the oracle's. `topk_hosts.py` runs a case on a host, `topk_verdict.py` holds the host to it.

GLM-5's routing numbers are `GLM_5`.
"""

import zlib
from dataclasses import dataclass, field
from functools import cached_property

import oracle
import torch

RELEASES = ("0.5.9", "0.5.18", "0.5.23")
# situations in which the router writes a packed copy of its output
PACKING = ("packed", "masking gate")
# two choice scores this far apart rank alike in double precision and in float32
CLEAR = 1e-6


@dataclass(frozen=True)
class Case:
    """A router, a batch of rows, and a setting."""

    name: str
    # the router
    experts: int
    slots: int = 8
    scoring: str = "softmax"
    renormalize: bool = True
    biased: bool = False
    # groups, and how many of them a row may choose from; None: no grouped router
    groups: tuple[int, int] | None = None
    shared: int = 0
    scaling: float | None = None
    # whether the router multiplies its weights by the scaling itself
    folded: bool = False
    # the batch
    rows: int = 12
    padding: tuple[int, ...] = ()
    # whether SGLang itself says how many rows are real
    counted: bool = False
    dtype: torch.dtype = torch.float32
    # logits on a coarse grid and one bias for all, so that many experts score alike
    tied: bool = False
    # the setting
    k0: int = 4
    gate_open: bool = True
    # what else holds on the host, see `situation_of` in topk_hosts.py
    situation: str = ""
    releases: tuple[str, ...] = RELEASES
    # release -> words of the reason why the layer is left alone there
    left_alone: dict[str, str] = field(default_factory=dict)

    @property
    def valid(self) -> list[bool]:
        """Which rows are real tokens."""
        return [row not in self.padding for row in range(self.rows)]

    @cached_property
    def bias(self) -> torch.Tensor | None:
        """`[N]`, or `[rows, N]` where each token has its own."""
        if not self.biased:
            return None
        shape = (self.rows, self.experts) if self.situation == "bias by token" else (self.experts,)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * 0.1
        return torch.full(shape, 0.125) if self.tied else noise

    @cached_property
    def logits(self) -> torch.Tensor:
        """`[rows, N]` seeded, rows alike enough to share experts, each with one clear selection."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        common = torch.randn(self.experts, generator=generator)
        rows: list[torch.Tensor] = []
        while len(rows) < self.rows:
            row = common + torch.randn(self.experts, generator=generator)
            row = (row * 2).round() / 2 if self.tied else row.to(self.dtype).float()
            if self._is_clear(self._scores(row.tolist(), len(rows))[1]):
                rows.append(row)
        return torch.stack(rows).to(self.dtype)

    @cached_property
    def stock(self) -> tuple[list[list[float]], list[list[int]]]:
        """`(weights, ids)` of the router, best expert first, shared experts last."""
        selected = [self._select(*scores) for scores in self._all_scores(rounded=True)]
        return [weights for weights, _ in selected], [ids for _, ids in selected]

    @cached_property
    def expected(self) -> tuple[list[list[float]], list[list[int]]]:
        """`(weights, ids)` after OEA; a row that keeps its experts may have any column order."""
        stock_weights, stock_ids = self.stock
        gate, choice = zip(*self._all_scores(), strict=True)
        weights, ids = oracle.reroute(
            choice,
            gate,
            [row[: self.slots] for row in stock_ids],
            [row[: self.slots] for row in stock_weights],
            [self.k0] * self.rows,
            renormalize=self.renormalize,
            valid=self.valid,
            max_rank=None,
        )
        shared = slice(self.slots, None)
        return (
            [row + stock[shared] for row, stock in zip(weights, stock_weights, strict=True)],
            [row + stock[shared] for row, stock in zip(ids, stock_ids, strict=True)],
        )

    def is_stock(self, release: str) -> bool:
        """Whether this must come out bit for bit as without OEA."""
        off = not self.gate_open or not 0 < self.k0 < self.slots
        return off or release in self.left_alone

    def physical(self, expert: int) -> int:
        """The id that an expert has in the output, which is its own unless experts are mapped."""
        return (7 * expert + 3) % self.experts if self.situation == "mapped" else expert

    def keeps(self, row: int) -> bool:
        """Whether a row's set of experts is its stock set."""
        return set(self.expected[1][row]) == set(self.stock[1][row])

    def _all_scores(self, rounded: bool = False) -> list[tuple[list[float], list[float]]]:
        return [self._scores(row, i, rounded) for i, row in enumerate(self.logits.tolist())]

    def _scores(self, logits: list[float], row: int, rounded: bool = False) -> tuple:
        """A row's gate and choice scores, as float32 has them; `rounded`: as the logits' dtype."""
        gate = torch.tensor(oracle.gate_scores(logits, self.scoring), dtype=torch.float32)
        gate = (gate.to(self.dtype).float() if rounded else gate).tolist()
        bias = None if self.bias is None else self.bias.expand(self.rows, -1)[row].tolist()
        return gate, oracle.choice_scores(gate, bias, *(self.groups or (1, 1)))

    def _select(self, gate: list[float], choice: list[float]) -> tuple[list[float], list[int]]:
        ids = sorted(range(self.experts), key=lambda expert: (-choice[expert], expert))
        ids = ids[: self.slots]
        scale = self.scaling if self.folded else 1.0
        mass = sum(gate[expert] for expert in ids) if self.renormalize else 1.0
        weights = [gate[expert] / mass * scale for expert in ids]
        # a shared expert counts once when the scaling has been applied
        appended = [sum(weights) / self.scaling] * self.shared if self.shared else []
        return weights + appended, ids + [self.experts] * self.shared

    def _is_clear(self, choice: list[float]) -> bool:
        ranked = sorted((score for score in choice if score > float("-inf")), reverse=True)
        pairs = list(zip(ranked, ranked[1:], strict=False))
        if self.tied:
            # ties anywhere but in what the router selects
            pairs = pairs[self.slots - 1 : self.slots]
        return all(a - b > CLEAR * (1.0 if self.biased else a) for a, b in pairs)


# 256 experts, top 8, sigmoid and bias, one group, scaling 2.5; SGLang's grouped router with a bias
# is sigmoid whatever its `scoring_func` says
GLM_5 = dict(experts=256, scoring="sigmoid", biased=True, groups=(1, 1), scaling=2.5)
QWEN3 = dict(experts=128)
DEEPSEEK_V2 = dict(experts=160, slots=6, renormalize=False, groups=(8, 3), scaling=16.0)
DEEPSEEK_V3 = GLM_5 | dict(groups=(8, 4))
SQRTSOFTPLUS = dict(experts=256, scoring="sqrtsoftplus", biased=True, scaling=1.5, folded=True)
MAPPED = {"0.5.9": "maps logical to physical experts"}
BY_TOKEN = {"0.5.23": "its bias differs by token"}

CASES = (
    Case("glm-5", **GLM_5),
    Case("glm-5: scaling folded", **GLM_5, folded=True),
    Case("glm-5: fused shared expert", **GLM_5, shared=1),
    Case("glm-5: fused shared expert, scaling folded", **GLM_5, shared=1, folded=True),
    Case("glm-5: logits in bfloat16", **GLM_5, folded=True, dtype=torch.bfloat16),
    Case("glm-5: padding", **GLM_5, shared=1, padding=(0, 5, 10, 11)),
    Case("glm-5: padding that SGLang counts", **GLM_5, padding=(9, 10, 11), counted=True),
    Case("glm-5: ties", **GLM_5, tied=True),
    Case("glm-5: k0 = 1", **GLM_5, k0=1),
    Case("glm-5: k0 = 0", **GLM_5, k0=0),
    Case("glm-5: k0 = 8", **GLM_5, shared=1, k0=8),
    Case("glm-5: k0 = 12", **GLM_5, k0=12),
    Case("glm-5: prefill", **GLM_5, shared=1, gate_open=False),
    Case("glm-5: one row", **GLM_5, rows=1),
    Case("glm-5: one row, padded", **GLM_5, shared=1, rows=4, padding=(0, 2, 3)),
    Case(
        "glm-5: a bias by token",
        **GLM_5,
        situation="bias by token",
        releases=("0.5.23",),
        left_alone=BY_TOKEN,
    ),
    Case("qwen3", **QWEN3),
    Case("qwen3: softmax kernel", **QWEN3, situation="softmax kernel"),
    Case("qwen3: ties", **QWEN3, tied=True),
    Case("qwen3: packed", **QWEN3, situation="packed", releases=("0.5.18", "0.5.23")),
    # before 0.5.23 an ungrouped softmax router cannot fold
    Case("softmax: scaling folded", experts=128, scaling=2.5, folded=True, releases=("0.5.23",)),
    Case("olmoe: softmax, not renormalised", experts=64, renormalize=False),
    Case("deepseek-v2: groups, no bias", **DEEPSEEK_V2, k0=3),
    Case("deepseek-v2: mapped", **DEEPSEEK_V2, k0=3, situation="mapped", left_alone=MAPPED),
    Case(
        "sqrtsoftplus: a gate that masks and packs",
        **SQRTSOFTPLUS,
        padding=(9, 10, 11),
        counted=True,
        situation="masking gate",
        releases=("0.5.23",),
    ),
    Case("deepseek-v3: eight groups", **DEEPSEEK_V3),
    Case("deepseek-v3: padding", **DEEPSEEK_V3, folded=True, padding=(0, 11)),
)
