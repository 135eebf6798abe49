"""Routing policies: who decides which experts a decode batch activates.

A policy is a function `f(batch, *, parameters) -> Selection`, one family a file, its source in the
file's docstring. To add one: write the function, add it to `POLICIES`. Its keyword parameters, with
their types and defaults, are what a spec may name: `oea:k0=4`, `oea:k0=4,max_rank=16`.
"""

import difflib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import LabError
from .batch import Batch, PolicyError, Selection
from .lynx import lynx
from .oea import oea
from .paper import paper
from .pruned import pruned
from .sere import sere
from .stock import stock
from .tried import by_layer, demand, lonely, min_p, soft
from .xshare import xshare

POLICIES: dict[str, Callable[..., Selection]] = {
    function.__name__: function
    for function in (
        *(stock, pruned, oea, paper, lynx, xshare, sere),
        *(lonely, demand, min_p, by_layer, soft),
    )
}
# ideas that did not win are measured on request only
TRIED = {function.__name__ for function in (lonely, demand, min_p, by_layer, soft)}
# policies that read Batch.similarity
CALIBRATED = {"sere"}


@dataclass(frozen=True)
class Policy:
    """A family with its parameters: what one spec says."""

    name: str
    parameters: tuple[tuple[str, Any], ...]

    @classmethod
    def parse(cls, spec: str) -> "Policy":
        """Read `name` or `name:parameter=value,...`.

        Raises:
            LabError: an unknown name or parameter, a value of another type, a missing parameter.
        """
        name, _, rest = spec.strip().partition(":")
        if name not in POLICIES:
            raise _refused(spec, "policy", name, list(POLICIES))
        signature = inspect.signature(POLICIES[name]).parameters.values()
        known = {p.name: p for p in signature if p.kind is p.KEYWORD_ONLY}
        types = typing.get_type_hints(POLICIES[name])
        values = {}
        for item in filter(None, rest.split(",")):
            key, _, value = item.partition("=")
            if key not in known or key in values:
                raise _refused(spec, "parameter", key, [k for k in known if k not in values])
            values[key] = _value(spec, key, value, types[key])
        missing = [k for k, p in known.items() if p.default is p.empty and k not in values]
        if missing:
            expected = f"{name}:" + ",".join(f"{key}=VALUE" for key in missing)
            raise LabError(
                f"the policy {name} needs {' and '.join(missing)}",
                where=f"--policy {spec}",
                got=spec,
                expected=expected,
                fix=f"name {missing[0]}",
            )
        # in the function's order and without defaults, so that one policy has one spelling
        given = {k: values[k] for k, p in known.items() if k in values and values[k] != p.default}
        return cls(name, tuple(given.items()))

    def __call__(self, batch: Batch) -> Selection:
        """Route a batch."""
        return POLICIES[self.name](batch, **dict(self.parameters))

    def __str__(self) -> str:
        settings = self.settings
        return f"{self.name}:{settings}" if settings else self.name

    @property
    def settings(self) -> str:
        """The parameters as a spec writes them."""
        return ",".join(f"{key}={value}" for key, value in self.parameters)

    @property
    def calibrated(self) -> bool:
        """Whether it needs `Batch.similarity`."""
        return self.name in CALIBRATED


def default_specs(batch: Batch, *, calibrated: bool) -> list[str]:
    """One or two of each family, around half of a model's slots and a good third of its experts.

    `batch` is any that the model routed: p of the paper's general form is set where it limits half
    of those rows.
    """
    half, budget = max(1, batch.slots // 2), max(batch.slots, 3 * batch.experts // 8)
    share = batch.gate.gather(-1, batch.order).cumsum(-1)
    p = (share[..., half - 1] / share[..., -1]).median().clamp(min=0.01).item()
    specs = ["stock", f"pruned:k0={half}", f"oea:k0={half}", f"oea:k0={half + 1}"]
    specs += [f"paper:k0={half},max_rank={batch.slots}", f"paper:k0={half},p={p:.3g}"]
    specs += [f"lynx:budget={budget}", f"xshare:budget={budget}"]
    return specs + [f"sere:top={half},rho=0"] if calibrated else specs


def _value(spec: str, key: str, text: str, wanted: Any) -> Any:
    # `int | None` is an int that has a default
    kind = next(t for t in (*typing.get_args(wanted), wanted) if t is not type(None))
    try:
        return kind(text)
    except ValueError:
        raise LabError(
            f"{key} is not valid",
            where=f"--policy {spec}",
            got=f"{key}={text}",
            expected={int: "a whole number", float: "a number"}.get(kind, kind.__name__),
            fix=f"correct {key}",
        ) from None


def _refused(spec: str, what: str, got: str, valid: list[str]) -> LabError:
    near = difflib.get_close_matches(got, valid, n=1)
    return LabError(
        f"unknown {what}",
        where=f"--policy {spec}",
        got=got or "nothing",
        expected=f"one of {', '.join(valid)}" if valid else "no parameter more",
        fix=f"did you mean {near[0]}?" if near else f"correct the {what}",
    )


__all__ = ["POLICIES", "Batch", "Policy", "PolicyError", "Selection", "default_specs"]
