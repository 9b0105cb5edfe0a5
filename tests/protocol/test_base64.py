from __future__ import annotations

import base64 as independent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol import base64
from execserver.protocol.base64 import InvalidBase64, decode, encode

# What the reference server says of each text.
REFUSED = [
    ("A", "Invalid input length: 1"),
    ("AAAAA", "Invalid input length: 5"),
    ("aGVsbG8", "Invalid padding"),
    ("YQ=", "Invalid padding"),
    ("*", "Invalid symbol 42, offset 0."),
    ("aG V", "Invalid symbol 32, offset 2."),
    ("aGVs\n", "Invalid symbol 10, offset 4."),
    ("-_8=", "Invalid symbol 45, offset 0."),
    ("YQ==YQ==", "Invalid symbol 61, offset 2."),
    ("=", "Invalid symbol 61, offset 0."),
    ("====", "Invalid symbol 61, offset 0."),
    ("gYAw=", "Invalid symbol 61, offset 4."),
    ("é", "Invalid symbol 195, offset 0."),
    ("YR==", "Invalid last symbol 82, offset 1."),
    ("aGVsbG9=", "Invalid last symbol 57, offset 6."),
]


@pytest.fixture(params=[True, False], ids=["pybase64", "stdlib"], autouse=True)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play every test with the fast module and without it."""
    monkeypatch.setattr(base64, "_FAST", request.param)


def complaint(text: str) -> str | None:
    try:
        decode(text)
    except InvalidBase64 as error:
        return str(error)
    return None


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_damaged_text_is_refused_with_the_contracts_words(text: str, message: str) -> None:
    assert complaint(text) == message


def test_nothing_is_written_as_nothing() -> None:
    assert (encode(b""), decode("")) == (b"", b"")


def test_any_buffer_can_be_encoded() -> None:
    assert encode(bytearray(b"hello")) == encode(memoryview(b"hello")) == b"aGVsbG8="


@pytest.mark.parametrize("fast", [True, False])
@given(data=st.one_of(st.binary(max_size=100), st.binary(min_size=250, max_size=260)))
def test_bytes_survive(fast: bool, data: bytes) -> None:
    base64._FAST = fast
    text = encode(data)
    assert text == independent.b64encode(data)
    assert decode(text.decode()) == data


@pytest.mark.parametrize("fast", [True, False])
@given(text=st.text("AQgw89+/=YZ*é", max_size=12))
def test_exactly_the_canonical_texts_are_accepted(fast: bool, text: str) -> None:
    base64._FAST = fast
    try:
        canonical = independent.b64encode(independent.b64decode(text, validate=True)).decode() == text
    except ValueError:
        canonical = False
    assert (complaint(text) is None) == canonical
