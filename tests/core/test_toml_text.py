"""TOML text as the newest reference server writes it, and that it means the same."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.core.toml_text import to_text

RECORDED_STRINGS = [
    ("plain é 😀", '"plain é 😀"'),
    ("", '""'),
    ("a\tb", r'"a\tb"'),
    ("it's", '"it\'s"'),
    ('say "hi"', "'say \"hi\"'"),
    ("C:\\x", r"'C:\x'"),
    ("a'b\\c", "'''a'b\\c'''"),
    ('it\'s "x" ', '"""it\'s "x" """'),
    ("x\ny", '"""\nx\ny"""'),
    ("a'''b\n\"\"\"c", '"""\na\'\'\'b\n""\\"c"""'),
    ("a\\b\nc", "'''\na\\b\nc'''"),
    ("a\r\nb", '"""\na\\r\nb"""'),
    ("\b\f", r'"\b\f"'),
    ("a\x00\x7f", r'"a\u0000\u007F"'),
    ('\x1b "q"', r'"\u001B \"q\""'),
    ('tab\tquote" back\\ nl\n\x01', '"""\ntab\\tquote" back\\\\ nl\n\\u0001"""'),
]

RECORDED_FLOATS = [
    (1.0, "1.0"),
    (1e10, "10000000000.0"),
    (3.14, "3.14"),
    (1e-7, "0.0000001"),
    (123456789012345680.0, "123456789012345680.0"),
    (5e22, "50000000000000000000000.0"),
    (-0.0, "-0.0"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (-math.nan, "nan"),
]


@pytest.mark.parametrize(("value", "text"), RECORDED_STRINGS)
def test_a_string_has_the_recorded_notation(value: str, text: str) -> None:
    assert to_text({"k": value}) == f"k = {text}\n"


@pytest.mark.parametrize(("value", "text"), RECORDED_FLOATS)
def test_a_float_is_written_without_an_exponent(value: float, text: str) -> None:
    assert to_text({"k": value}) == f"k = {text}\n"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a-b_1", "a-b_1"),
        ("", '""'),
        ("a.b", '"a.b"'),
        ("é", '"é"'),
        ("it's", '"it\'s"'),
        ('q"q', "'q\"q'"),
        ("'\"", '"\'\\""'),
        ("\\", "'\\'"),
        ("a\nb", r'"a\nb"'),
    ],
)
def test_a_key_has_the_recorded_notation(key: str, text: str) -> None:
    assert to_text({key: 1}) == f"{text} = 1\n"


def test_times_are_written_as_they_are() -> None:
    text = "a = 1979-05-27T07:32:00Z\nb = 1979-05-27T00:32:00.999999-07:00\nc = 1979-05-27\nd = 07:32:00.5\n"
    assert to_text(tomllib.loads(text)) == text


def test_plain_members_come_before_tables_and_a_table_of_tables_has_no_header() -> None:
    text = """z = 1
arr = [[1.5], { k = 2 }, {}]

[a.b]
y = 1

[a.b.c]

[[l]]

[[l]]
n = 2

[l.inner]
p = true

[[l.nested]]
v = 1
"""
    assert to_text(tomllib.loads(text)) == text


keys = st.text(max_size=5)
values: st.SearchStrategy[Any] = st.recursive(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(['"""', "'''", '"""""', "\\\n'", "\r\n", '"\n"'])
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.dates()
    | st.datetimes()
    | st.times(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keys, values, max_size=5))
def test_what_is_written_means_the_same(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_text(table)) == table
