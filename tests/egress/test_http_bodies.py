"""Chunked bodies: read strictly, in any pieces."""

from __future__ import annotations

import pytest

from execserver.egress.http_bodies import MAX_LINE_BYTES, Chunks, chunk
from execserver.egress.http_heads import BadHead

BODY = b"3\r\nabc\r\n4;x=y\r\ndefg\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_body_is_read_in_any_pieces(size: int) -> None:
    chunks = Chunks()
    data = BODY + b"behind"
    found = b"".join(b"".join(chunks.feed(data[at : at + size])) for at in range(0, len(data), size))
    assert found == b"abcdefg0123456789"
    assert chunks.ended
    assert b"behind".startswith(chunks.rest) or chunks.rest == b"behind"


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1 \r\n",
        b"1\n",
        b"1\nabc",
        b"1\r\nab\r\n",
        b"3\r\nabcd\r\n",
        b"1\r\na\n",
        b"1;\x00\r\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"x" * MAX_LINE_BYTES,
        b"0\r\n" + b"A: b\r\n" * 1000,
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead):
        Chunks().feed(data)


def test_a_chunk_is_written_and_none_for_nothing() -> None:
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert chunk(b"") == b""
