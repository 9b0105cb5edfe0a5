"""Spans of time as people write them."""

from __future__ import annotations

import pytest

from execserver import spans


@pytest.mark.parametrize(
    ("text", "expected"), [("0s", 0), ("90s", 90), ("15m", 900), ("8h", 28_800), ("007d", 7 * 86_400)]
)
def test_a_span_has_seconds(text: str, expected: int) -> None:
    assert spans.seconds(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "s", "5", "5 s", "-5s", "+5s", "1.5h", "5S", "5w", "5ms", "5s\n", "1_0s", "1234567s", "٣s", "²s"],
)
def test_anything_else_is_none(text: str) -> None:
    assert spans.seconds(text) is None
