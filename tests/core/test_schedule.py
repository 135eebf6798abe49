"""k0 by number of valid rows and by layer: what a setting parses to, and the table it makes."""

import json

import pytest

from sglang_oea.core.schedule import Schedule, ScheduleError, is_off


def k0_of(schedule: Schedule, layer_id: int, *rows: int, max_rows: int = 40) -> list[int]:
    """Entries of one layer's line of the table."""
    (line,) = schedule.table({layer_id: 0}, max_rows)
    assert len(line) == max_rows + 1
    return [line[n] for n in rows]


@pytest.mark.parametrize(
    ("text", "steps", "first_rows", "shown"),
    [
        ("4", ((1, 4),), 1, 4),
        ("007", ((1, 7),), 1, 7),
        ("999999999", ((1, 999999999),), 1, 999999999),
        ("1:8,8:5,16:4", ((1, 8), (8, 5), (16, 4)), 1, "1:8,8:5,16:4"),
        ("8:5, 16:4", ((8, 5), (16, 4)), 8, "8:5, 16:4"),
        ("2:4,32:0", ((2, 4), (32, 0)), 2, "2:4,32:0"),
    ],
)
def test_parse(text, steps, first_rows, shown):
    """Holds what each form of a setting means and how it is shown."""
    schedule = Schedule.parse(text)
    assert (schedule.steps, schedule.layers) == (steps, ())
    assert (schedule.first_rows, schedule.shown) == (first_rows, shown)
    assert type(schedule.shown) is type(shown)


def test_table_at_each_boundary():
    """Holds that a step starts at its own number of rows; below the first, k0 = 0 is stock."""
    schedule = Schedule.parse("2:8,8:5,16:4,32:0")
    assert k0_of(schedule, 0, 0, 1, 2, 7, 8, 15, 16, 31, 32, 40) == [0, 0, 8, 8, 5, 5, 4, 4, 0, 0]
    assert k0_of(Schedule.parse("4"), 0, 0, 1, 40) == [0, 4, 4]


def test_table_cuts_steps_beyond_the_limit():
    """Holds that the table ends at max_rows, whatever comes later in the schedule."""
    assert Schedule.parse("1:8,3:5,9:4").table({5: 0}, 3) == [[0, 8, 8, 5]]


def test_profile(tmp_path):
    """Holds that a profile gives layers their own k0, as numbers or schedules."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"k0": 4, "layers": {"11": "3:6", "5": 0, "7": 2}}))
    schedule = Schedule.parse(str(path))
    assert schedule.shown == str(path)
    assert schedule.steps == ((1, 4),)
    assert schedule.layers == ((5, ((1, 0),)), (7, ((1, 2),)), (11, ((3, 6),)))
    assert k0_of(schedule, 3, 0, 1, 40) == [0, 4, 4]
    assert k0_of(schedule, 5, 0, 1, 40) == [0, 0, 0]
    assert k0_of(schedule, 11, 2, 3, 40) == [0, 6, 6]
    # lines come in the order that was asked for, not in that of the profile
    assert [line[5] for line in schedule.table({3: 0, 5: 1, 7: 2, 11: 3}, 8)] == [4, 0, 2, 6]
    assert schedule.first_rows == 1


def test_first_rows_of_a_profile(tmp_path):
    """Holds that a profile applies from the smallest start of any layer on."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"k0": "16:4", "layers": {"3": "8:4", "5": "32:2"}}))
    assert Schedule.parse(str(path)).first_rows == 8


def test_a_schedule_is_a_value():
    """Holds that equal settings are equal and hashable, and different ones are not equal."""
    assert Schedule.parse("1:8,8:5") == Schedule.parse("1:8,8:5")
    assert len({Schedule.parse(text) for text in ("4", "4", "5", "1:8")}) == 3


def test_errors_say_what_parses():
    """Holds that the error carries the expectation that a refusal prints."""
    with pytest.raises(ScheduleError, match="1:8,8:5,16:4") as error:
        Schedule.parse("four")
    assert error.value.expected == str(error.value)
    with pytest.raises(ScheduleError, match="some k0 above 0"):
        Schedule.parse("1:0,16:0")


@pytest.mark.parametrize(
    ("text", "off"), [("", True), ("0", True), ("00", True), ("4", False), ("1:0", False)]
)
def test_is_off(text, off):
    """Holds that only an empty setting and the number 0 are off: a bad one must be refused."""
    assert is_off(text) is off
