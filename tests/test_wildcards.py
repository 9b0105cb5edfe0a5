"""Wildcards match whole texts, as the same regular expression does, in a bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.wildcards import Wildcards


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("?", "", False),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "axxbyy", False),
        ("*ab", "aab", True),
        ("a?", "a", False),
        ("[a]", "a", False),
        ("a.", "ab", False),
        ("*a*", "*", False),
        ("**", "x", True),
    ],
)
def test_patterns_match_whole_names(pattern: str, text: str, expected: bool) -> None:
    assert Wildcards(pattern).matches(text) is expected


def test_a_hostile_pattern_costs_no_more_than_pattern_times_text() -> None:
    assert not Wildcards("*a" * 2000 + "b").matches("a" * 4000)
    assert not Wildcards("*a?" * 1000 + "b").matches("a" * 4000)


def test_one_character_costs_hardly_more_than_a_fixed_one() -> None:
    def seconds(pattern: str) -> float:
        wildcards = Wildcards(pattern)
        begun = time.process_time()
        assert not wildcards.matches("a" * 20_000)
        return time.process_time() - begun

    fixed = min(seconds("*" + "a" * 500 + "b" + "a" * 500 + "*") for _ in range(3))
    # One place after the other took four seconds.
    assert min(seconds("*?" + "a" * 500 + "b" + "a" * 499 + "*") for _ in range(3)) < 0.1 + 10 * fixed


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*a?*b?*", "xaybz", True),
        ("*a?*a?*", "aaa", False),
        ("*a?*a?*", "aaaa", True),
        ("*?é*", "éé", True),
        ("*??*", "a", False),
        ("*??*", "ab", True),
        ("a*?b*a", "abba", True),
        ("a*?b*a", "aba", False),
        ("*\ud800?\U0001f600*", "\U0001f600\ud800\n\U0001f600", True),
    ],
)
def test_the_first_place_of_a_piece_with_any_character_counts(
    pattern: str, text: str, expected: bool
) -> None:
    assert Wildcards(pattern).matches(text) is expected


@given(st.text("ab*?", max_size=8), st.text("ab*?", max_size=10))
def test_matching_agrees_with_regular_expressions(pattern: str, text: str) -> None:
    translated = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    assert Wildcards(pattern).matches(text) == (re.fullmatch(translated, text, re.DOTALL) is not None)
