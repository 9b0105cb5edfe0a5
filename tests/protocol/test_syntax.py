from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.syntax import EXPLAINED_BYTES, find_damage

# What the reference server says of each text.
REASONS = [
    ("", "EOF while parsing a value at line 1 column 0"),
    ("   ", "EOF while parsing a value at line 1 column 3"),
    ("{", "EOF while parsing an object at line 1 column 1"),
    ("[", "EOF while parsing a list at line 1 column 1"),
    ("[1", "EOF while parsing a list at line 1 column 2"),
    ("[1,", "EOF while parsing a value at line 1 column 3"),
    ("[1,]", "trailing comma at line 1 column 4"),
    ("[1 2]", "expected `,` or `]` at line 1 column 4"),
    ("[,", "expected value at line 1 column 2"),
    ("{,", "key must be a string at line 1 column 2"),
    ('{"a"', "EOF while parsing an object at line 1 column 4"),
    ('{"a" 1', "expected `:` at line 1 column 6"),
    ('{"a":', "EOF while parsing a value at line 1 column 5"),
    ('{"a":1', "EOF while parsing an object at line 1 column 6"),
    ('{"a":1,', "EOF while parsing a value at line 1 column 7"),
    ('{"a":1,}', "trailing comma at line 1 column 8"),
    ('{"a":1 "b"}', "expected `,` or `}` at line 1 column 8"),
    ("nope", "expected ident at line 1 column 2"),
    ("tru", "EOF while parsing a value at line 1 column 3"),
    ("-", "EOF while parsing a value at line 1 column 1"),
    ("-a", "invalid number at line 1 column 2"),
    ("01", "invalid number at line 1 column 2"),
    ("1.", "EOF while parsing a value at line 1 column 2"),
    ("1.e", "invalid number at line 1 column 3"),
    ("1e", "EOF while parsing a value at line 1 column 2"),
    ("1e+x", "invalid number at line 1 column 4"),
    ("NaN", "expected value at line 1 column 1"),
    ("\ufeff{}", "expected value at line 1 column 1"),
    ('"', "EOF while parsing a string at line 1 column 1"),
    ('"\\', "EOF while parsing a string at line 1 column 2"),
    ('"\\q"', "invalid escape at line 1 column 3"),
    ('"\\u00', "EOF while parsing a string at line 1 column 5"),
    ('"\\u00zz"', "invalid escape at line 1 column 7"),
    ('"\\ud800"', "unexpected end of hex escape at line 1 column 8"),
    ('"\\ud800\\n"', "unexpected end of hex escape at line 1 column 9"),
    ('"\\ud800\\u0041"', "lone leading surrogate in hex escape at line 1 column 13"),
    ('"\\udc00"', "lone leading surrogate in hex escape at line 1 column 7"),
    ('"\x01"', "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 2"),
    ('{\n "a": 1,\n "b" 2}', "expected `:` at line 3 column 6"),
    ("5 x", "trailing characters at line 1 column 3"),
    ("[" * 128, "recursion limit exceeded at line 1 column 128"),
    ('{"a":' * 128, "recursion limit exceeded at line 1 column 636"),
]

pieces = st.lists(
    st.sampled_from([*'{}[]",:\\ \n-+.eE0123456789', "true", "null", "é", '"a"', "\\u00e9"]), max_size=12
)


@pytest.mark.parametrize(("text", "reason"), REASONS)
def test_damage_is_named_with_its_place(text: str, reason: str) -> None:
    assert find_damage(text.encode()).reason == reason


def test_broken_utf_8_is_found_at_the_end_of_its_text() -> None:
    assert find_damage(b'["a\xff"]').reason == "invalid unicode code point at line 1 column 5"


def test_the_end_of_a_value_with_something_behind_it_is_told() -> None:
    assert find_damage(b'{"a":1} x').value_end == 7
    assert find_damage(b'{"a":1').value_end is None


def test_a_long_text_gets_a_plain_reason() -> None:
    text = b"[" + b"1," * EXPLAINED_BYTES
    assert find_damage(text).reason == f"invalid JSON in a message of {len(text)} bytes"


@given(pieces.map("".join))
def test_damage_is_found_exactly_where_json_is_refused(text: str) -> None:
    try:
        json.loads(text)
        valid = True
    except ValueError:
        valid = False
    assert (find_damage(text.encode()).reason == "invalid JSON") == valid
