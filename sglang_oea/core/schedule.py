"""k0 as a function of the number of valid rows, and of the layer where a profile says so.

A bigger batch shares more, so it can afford a smaller baseline; the paper leaves k0 by batch size
as an open problem (section 6). Standard library only.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

# nine digits are stock for any router, and fit an int32
_STEP = re.compile(r"([0-9]{1,9}):([0-9]{1,9})", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_EXPECTED = (
    "a whole number such as 4; a schedule by rows such as 1:8,8:5,16:4 (from that many rows on, "
    "rows ascending from 1); or the path of a profile JSON"
)

Steps = tuple[tuple[int, int], ...]


class ScheduleError(ValueError):
    """A k0 that does not parse; `expected` says what does."""

    def __init__(self, expected: str):
        super().__init__(expected)
        self.expected = expected


@dataclass(frozen=True)
class Schedule:
    """What the user wrote, its steps `((rows, k0), ...)` ascending in rows, exceptions by layer."""

    text: str
    steps: Steps
    layers: tuple[tuple[int, Steps], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Read a number, a schedule, or a profile's path.

        Raises:
            ScheduleError: anything else, or nothing that would ever reroute.
        """
        schedule = cls._from_file(text) if _is_file(text) else cls(text, _steps(text))
        if schedule.first_rows is None:
            raise ScheduleError("some k0 above 0; to switch OEA off, unset SGLANG_OEA_K0")
        return schedule

    @classmethod
    def _from_file(cls, path: str) -> "Schedule":
        try:
            with open(path, encoding="utf-8") as file:
                profile = json.load(file, object_pairs_hook=_without_duplicates)
        except (OSError, ValueError) as error:
            raise ScheduleError(f"a readable profile JSON ({error})") from None
        layout = 'a profile {"k0": number or schedule, "layers": {"layer": number or schedule}}'
        if not isinstance(profile, dict) or set(profile) - {"k0", "layers"} or "k0" not in profile:
            raise ScheduleError(layout)
        layers = profile.get("layers", {})
        if not isinstance(layers, dict) or not all(map(_is_layer_id, layers)):
            raise ScheduleError(layout)
        exceptions = {int(key): _profile_steps(value) for key, value in layers.items()}
        return cls(path, _profile_steps(profile["k0"]), tuple(sorted(exceptions.items())))

    @property
    def first_rows(self) -> int | None:
        """The fewest valid rows at which some layer reroutes; None if none ever does."""
        every = [step for steps in (self.steps, *dict(self.layers).values()) for step in steps]
        return min((rows for rows, k0 in every if k0), default=None)

    @property
    def shown(self) -> int | str:
        """For people and JSON: a plain number where it is one."""
        return int(self.text) if _WHOLE.fullmatch(self.text) else self.text

    def table(self, layer_ids: Iterable[int], max_rows: int) -> list[list[int]]:
        """`[layers, max_rows + 1]`: k0 of each layer, in this order, by number of valid rows."""
        exceptions = dict(self.layers)
        return [
            [_at(exceptions.get(layer_id, self.steps), rows) for rows in range(max_rows + 1)]
            for layer_id in layer_ids
        ]


def is_off(text: str) -> bool:
    """Whether a k0 setting means that OEA was not asked for: empty or 0."""
    return not text or (_WHOLE.fullmatch(text) is not None and int(text) == 0)


def _is_file(text: str) -> bool:
    # a number stays a number where a file happens to have its name
    return not _STEP.match(text) and not _WHOLE.fullmatch(text) and os.path.isfile(text)


def _is_layer_id(key: str) -> bool:
    return _WHOLE.fullmatch(key) is not None and str(int(key)) == key


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _profile_steps(value: object) -> Steps:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ScheduleError(f"numbers and schedules in the profile, not {value!r}")
    return _steps(str(value))


def _steps(text: str) -> Steps:
    if _WHOLE.fullmatch(text):
        return ((1, int(text)),)
    steps = []
    for part in text.split(","):
        match = _STEP.fullmatch(part.strip())
        if match is None:
            raise ScheduleError(_EXPECTED)
        rows, k0 = int(match[1]), int(match[2])
        if rows <= (steps[-1][0] if steps else 0):
            raise ScheduleError(_EXPECTED)
        steps.append((rows, k0))
    return tuple(steps)


def _at(steps: Steps, rows: int) -> int:
    k0 = 0
    for start, value in steps:
        if rows >= start:
            k0 = value
    return k0
