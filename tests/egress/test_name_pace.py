"""How fast new names may be looked up."""

from __future__ import annotations

from execserver.egress.name_pace import BURST, PER_SECOND, REMEMBERED, NamePace


def test_many_new_names_have_to_wait() -> None:
    pace = NamePace()
    first = [pace.delay(f"{number}.example", 1000.0) for number in range(BURST)]
    assert first == [0.0] * BURST
    assert pace.delay("one.more.example", 1000.0) == 1 / PER_SECOND
    assert pace.delay("two.more.example", 1000.0) == 2 / PER_SECOND


def test_a_name_that_was_looked_up_tells_nothing_new() -> None:
    pace = NamePace()
    for number in range(BURST):
        pace.delay(f"{number}.example", 0.0)
    assert pace.delay("0.example", 0.0) == 0.0


def test_time_makes_room() -> None:
    pace = NamePace()
    for number in range(BURST):
        pace.delay(f"{number}.example", 1000.0)
    assert pace.delay("late.example", 1001.0) == 0.0


def test_not_all_names_are_remembered() -> None:
    pace = NamePace()
    for number in range(REMEMBERED + 1):
        pace.delay(f"{number}.example", 1000.0 * number)
    assert pace.delay("0.example", 1000.0 * REMEMBERED) == 0.0
