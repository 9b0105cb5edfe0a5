"""Bytes that wait in pieces: few, in their order, and no large one is copied."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from execserver.wire.pieces import JOINED_BYTES, append


def test_little_pieces_become_few() -> None:
    pieces: deque[bytes] = deque()
    for _ in range(3 * JOINED_BYTES):
        append(pieces, b"x")
    assert [len(piece) for piece in pieces] == [JOINED_BYTES] * 3


def test_what_would_be_too_much_together_stays_apart() -> None:
    large = bytes(JOINED_BYTES)
    pieces = deque([b"x"])
    append(pieces, large)
    assert list(pieces) == [b"x", large]
    assert pieces[1] is large


@given(st.lists(st.binary(max_size=2 * JOINED_BYTES)))
def test_all_is_there_in_its_order(given_pieces: list[bytes]) -> None:
    pieces: deque[bytes] = deque()
    for each in given_pieces:
        append(pieces, each)
    assert b"".join(pieces) == b"".join(given_pieces)
    assert all(len(a) + len(b) > JOINED_BYTES for a, b in zip(pieces, list(pieces)[1:], strict=False))
