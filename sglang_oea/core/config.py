"""Settings: the `SGLANG_OEA_*` variables, parsed once into one frozen `Config`.

The only file that reads the environment. Standard library only, because it decides whether anything
else is imported at all. A value that does not parse is refused, never replaced by a default: a
benchmark of the wrong setting is worse than none.
"""

import difflib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .schedule import Schedule, ScheduleError, is_off

PREFIX = "SGLANG_OEA_"
SETTINGS = ("K0", "MODES", "IMPL", "MAX_ROWS", "MAX_RANK", "STRICT", "TRACE", "TRACE_STEPS")
# read by the scripts of the repository, meaningless to a server
SCRIPT_SETTINGS = ("VENV",)
MODES = ("decode", "verify")
IMPLEMENTATIONS = ("auto", "triton", "torch")
MAX_ROWS_LIMIT = 65536


def explain(what: str, *, where: object, got: object, expected: str, fix: str) -> str:
    """What is wrong, where, what came, what was expected, and what helps: the text of an error."""
    return (
        f"{what}\n  where:    {where}\n  got:      {got}\n  expected: {expected}\n  fix:      {fix}"
    )


class Refusal(SystemExit):
    """A requested OEA that cannot run: what is wrong, where, and how to put it right.

    `SystemExit`, because SGLang swallows every `Exception` of a plugin and would go on as a stock
    server.
    """

    def __init__(self, what: str, *, where: str, got: str, expected: str, fix: str):
        told = explain(what, where=where, got=got, expected=expected, fix=fix)
        super().__init__(
            f"sglang_oea: {told}\n  (SGLANG_OEA_STRICT=0 serves stock SGLang instead of stopping)"
        )


@dataclass(frozen=True)
class Config:
    """What the user asked for. Every rank of a server must hold an equal one."""

    k0: Schedule
    modes: tuple[str, ...] = ("decode",)
    impl: str = "auto"
    max_rows: int = 256
    max_rank: int | None = None
    # not part of the fingerprint: a rank that tolerates more, or records, still routes alike
    strict: bool = field(default=True, compare=False)
    trace: str | None = field(default=None, compare=False)
    trace_steps: int = field(default=64, compare=False)

    def fingerprint(self, *more: str) -> str:
        """Hash every setting that changes routing, and `more` (versions, implementation)."""
        # not the schedule's text: one profile may lie at another path on each node
        k0 = (self.k0.steps, self.k0.layers)
        settings = (k0, self.modes, self.impl, self.max_rows, self.max_rank)
        return hashlib.sha256(repr((settings, more)).encode()).hexdigest()


def refuse(refusal: Refusal, strict: bool) -> None:
    """Stop with the message, or log it where the user prefers a stock server to none."""
    if strict:
        raise refusal
    logging.getLogger("sglang_oea").error(
        "%s\nsglang_oea: SGLANG_OEA_STRICT=0, so stock SGLang is served", refusal
    )


def settings_or_stock(check: Callable[[Config], None] = lambda settings: None) -> Config | None:
    """The settings in force; None where OEA is off, or refused with `SGLANG_OEA_STRICT=0`.

    Args:
        check: raises a `Refusal` of its own where a host cannot run what was asked for.

    Raises:
        Refusal: settings that do not parse, or what `check` raises.
    """
    strict = True
    try:
        strict = is_strict()
        settings = from_environment()
        if settings is not None:
            check(settings)
        return settings
    except Refusal as refusal:
        refuse(refusal, strict)
        return None


def from_environment(environ: Mapping[str, str] = os.environ) -> Config | None:
    """The settings in force, or None when OEA is off (`SGLANG_OEA_K0` unset, empty or 0).

    Raises:
        Refusal: an unknown `SGLANG_OEA_*` name, or a value that does not parse.
    """
    _refuse_unknown_names(environ)
    k0 = environ.get(PREFIX + "K0", "").strip()
    if is_off(k0):
        return None
    settings = _Reader(environ)
    max_rows = settings.whole_number("MAX_ROWS", 256, high=MAX_ROWS_LIMIT)
    return Config(
        k0=settings.schedule(k0, max_rows),
        modes=settings.modes(),
        impl=settings.one_of("IMPL", IMPLEMENTATIONS),
        max_rows=max_rows,
        max_rank=settings.whole_number("MAX_RANK", None),
        strict=is_strict(environ),
        trace=settings.folder("TRACE"),
        trace_steps=settings.whole_number("TRACE_STEPS", 64),
    )


def is_strict(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a refusal stops the server (the default), or is logged and stock is served."""
    return _Reader(environ).one_of("STRICT", ("1", "0")) == "1"


def host_variable(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """A variable of SGLang's own, such as the ones that choose its plugins; empty where unset."""
    return environ.get(name, "")


@dataclass(frozen=True)
class _Reader:
    """One value at a time, each refused in the same shape."""

    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.environ.get(PREFIX + name, "").strip()

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """The first of `allowed` is the default."""
        value = self.text(name) or allowed[0]
        if value not in allowed:
            raise _bad_value(name, value, "one of " + ", ".join(allowed))
        return value

    def whole_number(self, name: str, default: int | None, high: int | None = None) -> int | None:
        value = self.text(name)
        if not value:
            return default
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) < 1:
            raise _bad_value(name, value, "a whole number of at least 1")
        if high is not None and int(value) > high:
            raise _bad_value(name, value, f"at most {high}")
        return int(value)

    def folder(self, name: str) -> str | None:
        value = self.text(name)
        # somebody who means to switch it on or off would get a folder of that name
        if value.isdigit():
            raise _bad_value(name, value, "the path of a folder, new or empty")
        return value or None

    def modes(self) -> tuple[str, ...]:
        value = self.text("MODES") or "decode"
        names = [name.strip() for name in value.split(",")]
        if not set(names) <= set(MODES):
            raise _bad_value("MODES", value, "decode, verify, or both with a comma between")
        return tuple(mode for mode in MODES if mode in names)

    def schedule(self, value: str, max_rows: int) -> Schedule:
        try:
            schedule = Schedule.parse(value)
        except ScheduleError as error:
            raise _bad_value("K0", value, error.expected) from None
        if schedule.first_rows > max_rows:
            raise _bad_value(
                "K0",
                value,
                f"a start of at most SGLANG_OEA_MAX_ROWS={max_rows} rows, or it never applies",
            )
        return schedule


def _bad_value(name: str, value: str, expected: str) -> Refusal:
    return Refusal(
        f"{PREFIX}{name} is not valid",
        where="environment of the server process",
        got=f"{PREFIX}{name}={value}",
        expected=expected,
        fix=f"correct it, or unset {PREFIX}{name}; `sglang-oea check` shows how settings parse",
    )


def _refuse_unknown_names(environ: Mapping[str, str]) -> None:
    known = [PREFIX + name for name in SETTINGS + SCRIPT_SETTINGS]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise Refusal(
                f"{name} is not a setting of sglang_oea",
                where="environment of the server process",
                got=f"{name}={environ[name]}",
                expected="one of " + ", ".join(PREFIX + setting for setting in SETTINGS),
                fix=f"did you mean {nearest}? Rename or unset {name}",
            )
