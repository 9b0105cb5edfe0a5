"""How fast new names may be looked up."""

from __future__ import annotations

import pytest

from execserver.egress.name_pace import BURST, LONGEST_S, PER_SECOND, REMEMBERED, NamePace, TooManyNames


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


def test_however_many_ask_at_once_no_more_names_get_through() -> None:
    pace = NamePace()
    taken = 0
    for number in range(3000):  # all within ten seconds
        try:
            pace.delay(f"{number}.example", 1000.0 + number / 300)
        except TooManyNames:
            continue
        taken += 1
    assert taken <= BURST + PER_SECOND * (10 + LONGEST_S)


def test_a_name_that_was_refused_is_still_new() -> None:
    pace = NamePace()
    for number in range(BURST + int(PER_SECOND * LONGEST_S)):
        pace.delay(f"{number}.example", 1000.0)
    for _ in range(2):
        with pytest.raises(TooManyNames):
            pace.delay("late.example", 1000.0)
    assert pace.delay("late.example", 1000.0 + 1 / PER_SECOND) == LONGEST_S
