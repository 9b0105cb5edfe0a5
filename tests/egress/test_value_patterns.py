"""Patterns of credentials."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest

from execserver.egress.value_patterns import BadPattern, Effort, TooMuch, ValuePattern

PATTERNS = [
    "hunter2hunter[0-9]",
    "hunter.*",
    "^vendor_[a-z]{24}$",
    "(?:sk|rk)_(live|test)_[0-9a-zA-Z]{24,99}",
    r"xox[baprs]-\d{10,12}-\w+",
    r"[^\s:]+:[A-Za-z0-9+/=-]{8,}?",
    r"a\.b\$c\-[\]x-]{3}",
    "x{2}y?z{0,3}!",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_samples_match_and_differ_from_run_to_run(pattern: str) -> None:
    draw = random.Random(1).randrange
    made = {ValuePattern(pattern).sample(draw) for _ in range(20)}
    assert len(made) > 1
    for value in made:
        assert re.fullmatch(pattern, value)
        assert ValuePattern(pattern).matches(value, Effort())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_matches_what_the_expression_matches(pattern: str) -> None:
    draw = random.Random(2)
    ours, theirs = ValuePattern(pattern), re.compile(pattern, re.ASCII)
    for _ in range(200):
        value = list(ours.sample(draw.randrange))
        value[draw.randrange(len(value))] = draw.choice("aZ5_- :é]")
        text = "".join(value)[: draw.randrange(1, len(value) + 1)]
        assert ours.matches(text, Effort()) == (theirs.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "[",
            "(",
            ")",
            "a|b)",
            "*",
            "a**",
            "a{2",
            "a{3,2}",
            "a{9999}",
            "(a{500}){500}",
            "a" * 2049,
            "",
            "a*",
        ),
        *("(?=a)b", "(?i)a", r"\bfoo", r"(a)\1", "[z-a]", "[[:alpha:]]", "(" * 40 + "a" + ")" * 40, "a\\"),
    ],
)
def test_what_cannot_be_read_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        ValuePattern(pattern)


def test_no_pattern_takes_long() -> None:
    assert not ValuePattern("(a*)*b|(a|a)*c|(a?){500}d").matches("a" * 2048, Effort())
    assert not ValuePattern("a").matches("a" * 2049, Effort())


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:a*a*a*a*){512}b",
        "a*" * 1000 + "b",
        "(a*|aa*|aaa*)" * 100 + "b",
        "a.*(" + "|" * 1900 + "){512}",
    ],
)
def test_a_pattern_that_would_take_long_is_given_up(pattern: str) -> None:
    with pytest.raises((TooMuch, BadPattern)):
        ValuePattern(pattern).matches("a" * 2048, Effort(200_000))


@pytest.mark.parametrize(("pattern", "value"), [("(?:a?){200}b", "a" * 190), ("b", "a")])
def test_many_matches_share_one_effort(pattern: str, value: str) -> None:
    effort, made = Effort(100_000), ValuePattern(pattern)

    def match_often() -> int:
        return sum(made.matches(value, effort) for _ in range(100_000))

    with pytest.raises(TooMuch):
        match_often()


def test_a_class_holds_no_more_than_what_values_can_have() -> None:
    ranges = "".join(f"{chr(at)}-{chr(at + 255)}" for at in range(0x100, 0xD000, 0x100))
    tracemalloc.start()
    pattern = ValuePattern(f"[a{ranges}]{{512}}")
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 100_000
    assert pattern.sample(random.Random(1).randrange) == "a" * 512
    assert not pattern.matches("b" * 512, Effort())


def test_values_of_unbounded_length_are_refused() -> None:
    with pytest.raises(BadPattern, match="too long"):
        ValuePattern("(?:a{40}){8}(?:a{40}){8}(?:aa*){50}(?:aa*){50}").sample(random.Random(1).randrange)
