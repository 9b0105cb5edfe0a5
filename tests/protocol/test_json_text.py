"""JSON without the `json` module accepts and means what the server's decoder accepts and means."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.json_text import NotJson, parse, parse_object, quote

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
damage = st.sampled_from([b"", *b'{ ] , " \\ e - \x01 \xff NaN \\ud834'.split()])


@given(values, st.booleans(), st.sampled_from(["", " ", "\n\t\r "]))
def test_values_come_back(value: object, escaped: bool, space: str) -> None:
    text = space + json.dumps(value, ensure_ascii=escaped) + space
    assert parse(text.encode()) == value


@given(values, st.data())
def test_damage_is_found_where_the_server_finds_it(value: object, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode())
    at = data.draw(st.integers(0, len(text)))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(damage)
    try:
        expected = msgspec.json.decode(bytes(text))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "out of range" in str(error):  # a number larger than any is valid JSON all the same
            return
        with pytest.raises(NotJson):
            parse(bytes(text))
    else:
        assert rounded(parse(bytes(text))) == rounded(expected)


def rounded(value: object) -> object:
    """Return a value in which integers of more than 64 bits are floats, as one of the decoders has them."""
    if isinstance(value, dict):
        return {name: rounded(member) for name, member in value.items()}
    if isinstance(value, list):
        return [rounded(member) for member in value]
    is_large = isinstance(value, int) and not -(2**63) <= value < 2**64
    return float(value) if is_large else value  # type: ignore[arg-type]


def test_integers_of_more_than_64_bits_are_as_good_as_floats() -> None:
    assert rounded(parse(b"[-10000000000000000001]")) == [-1e19]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (b"{\n", "EOF while parsing an object at line 2 column 0"),
        (b"{", "EOF while parsing an object at line 1 column 1"),
        (b"\xef\xbb\xbf{}", "expected value at line 1 column 1"),
        (b'"\xff"', "invalid unicode code point at line 1 column 3"),
        (b'"\\ud800"', "unexpected end of hex escape at line 1 column 8"),
        (b'{"\\ud800":1}', "unexpected end of hex escape at line 1 column 9"),
        (b"[NaN]", "expected value at line 1 column 2"),
        (b"[-Infinity]", "invalid number at line 1 column 3"),
        (b"[01]", "invalid number at line 1 column 3"),
        (b'["a\tb"]', "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 4"),
        (b"{} {", "trailing characters at line 1 column 4"),
        (b"[" * 100_000, "invalid JSON in a message of 100000 bytes"),
    ],
)
def test_the_reason_is_told_in_the_words_of_the_reference(text: bytes, reason: str) -> None:
    with pytest.raises(NotJson) as refused:
        parse(text)
    assert str(refused.value) == reason


def test_a_pair_of_escaped_surrogates_is_one_character() -> None:
    assert parse(b'"\\ud834\\udd1e"') == "\U0001d11e"


@pytest.mark.parametrize("digits", ["1" * 21, "-" + "9" * 5000])
def test_endless_numbers_are_still_numbers(digits: str) -> None:
    assert isinstance(parse(digits.encode()), float)


@given(texts)
def test_a_quoted_text_is_read_back(text: str) -> None:
    assert msgspec.json.decode(quote(text).encode()) == text


def test_halves_of_pairs_can_be_let_through() -> None:
    assert parse(b'["\\udcff"]', halves=True) == ["\udcff"]
    with pytest.raises(NotJson):
        parse(b'["\xff"]', halves=True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a":[1]}', {"a": [1]}),
        (' {"a":"\\ud800"}\n', {"a": "\ud800"}),
        ("", None),
        ("null", None),
        ("[]", None),
        ('{"a":NaN}', None),
        ("{} x", None),
        ("{", None),
        ("[" * 100_000, None),
    ],
)
def test_an_object_is_asked_for_without_a_reason(text: str, found: object) -> None:
    assert parse_object(text) == found
