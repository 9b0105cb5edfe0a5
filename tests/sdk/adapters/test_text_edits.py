"""Lines of a text, and one string in the place of another."""

from __future__ import annotations

import pytest

from execserver_adapters._text_edits import line_range, lines_of, replaced

TEXT = "one\ntwo\nthree\nfour"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 2, "one\ntwo"), (3, 0, "three\nfour"), (2, -1, "two\nthree\nfour"), (4, 99, "four"), (9, 10, "")],
)
def test_lines_are_counted_from_one_and_end_where_the_text_does(first: int, last: int, expected: str) -> None:
    assert lines_of(TEXT, first, last) == expected


def test_a_range_has_two_numbers() -> None:
    assert line_range(None) is None
    assert line_range([]) is None
    assert line_range([2, 3]) == (2, 3)
    with pytest.raises(ValueError, match=r"\[start_line, end_line\]"):
        line_range([2])


def test_a_string_that_is_there_once_is_replaced() -> None:
    assert replaced("a b c", "b", "B", everywhere=False) == ("a B c", 1)


def test_a_string_that_is_there_twice_is_replaced_only_if_asked_for() -> None:
    with pytest.raises(ValueError, match="2 times"):
        replaced("b b", "b", "B", everywhere=False)
    assert replaced("b b", "b", "B", everywhere=True) == ("B B", 2)


@pytest.mark.parametrize(("old", "reason"), [("x", "not found"), ("", "empty")])
def test_a_string_that_is_not_there_is_refused(old: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replaced("a b c", old, "y", everywhere=True)
