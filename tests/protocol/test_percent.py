"""Percent escapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.percent import percent_decode


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("a%20b", b"a b"),
        ("%fF", b"\xff"),
        ("%ZZ", b"%ZZ"),
        ("100%", b"100%"),
        ("%2", b"%2"),
        ("%2%41", b"%2A"),
    ],
)
def test_escapes_are_decoded_and_broken_ones_stay(text: str, decoded: bytes) -> None:
    assert percent_decode(text) == decoded


@given(st.binary(max_size=40))
def test_what_is_escaped_byte_by_byte_comes_back(data: bytes) -> None:
    assert percent_decode("".join(f"%{byte:02X}" for byte in data)) == data
