"""An answer is read whole whatever its pieces are, and what is ambiguous or too long is refused."""

from __future__ import annotations

import pytest

from execserver.remote.answers import MAX_REPLY_BYTES, Response
from execserver_client._http_answer import MAX_HEAD_BYTES, AnswerReader, BrokenAnswer

GOOD = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Response(200, b"hello")),
    "no reason": (b"HTTP/1.0 404\r\ncontent-length: 0\r\n\r\n", Response(404, b"")),
    "the same length twice": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\nok",
        Response(200, b"ok"),
    ),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\na: b\r\n\r\n",
        Response(200, b"hello"),
    ),
    "interim answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
        Response(204, b""),
    ),
}


@pytest.mark.parametrize(("data", "answer"), GOOD.values(), ids=GOOD)
def test_an_answer_is_complete_with_its_last_byte(data: bytes, answer: Response) -> None:
    for size in (1, 2, 7, len(data)):
        reader = AnswerReader()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = [reader.feed(piece) for piece in pieces]
        assert found == [None] * (len(pieces) - 1) + [answer]


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert reader.feed(b"lo") is None
    assert reader.end() == Response(200, b"hello")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_an_answer_that_is_cut_off_is_none(begun: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(begun) is None
    with pytest.raises(BrokenAnswer, match="the connection ended before the answer did"):
        reader.end()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "101 was not asked for"),
        (b"HTTP/1.1 100 Go\r\n\r\n" * 20, "100 was not asked for"),
        (b"HTTP/1.1 200 OK\r\n x: y\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "says twice"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "says twice"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", "unknown transfer coding"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_REPLY_BYTES + 1), "longer than"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_REPLY_BYTES + 1), "longer than"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n", "longer than it says"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 5000, "too long"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n200000\r\n" + bytes(0x1FFFFF),
            "longer than 1048576",
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 40, "trailers"),
        (b"x" * (MAX_HEAD_BYTES + 1), "head of the answer is longer"),
    ],
)
def test_what_is_ambiguous_or_too_long_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(BrokenAnswer, match=text):
        AnswerReader().feed(data)
