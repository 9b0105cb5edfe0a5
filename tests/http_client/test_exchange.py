"""Responses as servers really send them, hostile ones included, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.http_client.exchange import JOINED_BYTES, Exchange
from execserver.http_client.response_events import HEAD_BYTES, BrokenResponse
from execserver.protocol.errors import InternalError
from tests.support.http_peer import OK, Caller, Peer, ScriptedServer, answering, serving
from tests.support.waiting import wait_until

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

NOT_SENT = "http/request failed: error sending request for url ({url}/)"
CUT = "failed to read http/request response body: error decoding response body"


def ask(*response: bytes, **members: Any) -> dict[str, Any]:
    with serving(answering(*response)) as server:
        return Caller().ask(server.url, **members)


def failure(*response: bytes, **members: Any) -> str:
    with serving(answering(*response)) as server:
        with pytest.raises(InternalError) as caught:
            Caller().ask(server.url, **members)
        return caught.value.message.replace(server.url, "{url}")


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (HEAD + b"content-length: 3\r\n\r\nabc", b"abc"),
        (HEAD + b"content-length: 3\r\n\r\nabcdef", b"abc"),
        (HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
        (HEAD + b"\r\nabc", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\ncontent-length: 1\n\na", b"a"),
        (CHUNKED + b"4\r\nabcd\r\n0\r\n\r\n", b"abcd"),
        (CHUNKED + b"4;a=b\r\nabcd\r\n0\r\n\r\n", b"abcd"),
        (CHUNKED + b"2\r\nab\r\n2\r\ncd\r\n0\r\nx-t: 1\r\n\r\n", b"abcd"),
        (HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n", b"abcd"),
        (b"HTTP/1.1 205 Reset\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
    ],
)
def test_where_a_body_ends(response: bytes, body: bytes) -> None:
    assert ask(response)["body"] == body


@pytest.mark.parametrize("status", [200, 299, 404, 500, 600, 999])
def test_any_status_is_an_answer(status: int) -> None:
    assert ask(b"HTTP/1.1 %d X\r\ncontent-length: 1\r\n\r\na" % status)["status"] == status


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("HEAD", HEAD + b"content-length: 3\r\n\r\n"),
        ("HEAD", CHUNKED),
        ("GET", b"HTTP/1.1 204 No\r\ncontent-length: 3\r\n\r\nabc"),
        ("GET", b"HTTP/1.1 304 No\r\ncontent-length: 3\r\n\r\n"),
        ("GET", b"HTTP/1.1 101 Switch\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nabc"),
        ("CONNECT", HEAD + b"content-length: 3\r\n\r\nabc"),
    ],
)
def test_responses_without_a_body_end_with_their_head(method: str, response: bytes) -> None:
    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(response)
        peer.wait_for_end()

    with serving(play) as server:
        got = Caller().ask(server.url, method=method)
    assert got["body"] == b""
    assert got["status"] == int(response.split()[1])


def test_a_lower_case_head_has_a_body() -> None:
    assert ask(HEAD + b"content-length: 3\r\n\r\nabc", method="head")["body"] == b"abc"


def test_headers_are_lower_case_grouped_and_visible() -> None:
    got = ask(HEAD + b"A: 1\r\nb: 2\r\na: 3\r\nC: \xc3\xa9\r\nContent-Length: 0\r\nB:  4 \r\n\r\n")
    assert got["headers"] == [("a", "1"), ("a", "3"), ("b", "2"), ("b", "4"), ("content-length", "0")]


def test_the_body_is_not_decompressed() -> None:
    got = ask(HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00")
    assert got["body"] == b"\x1f\x8b\x08\x00"
    assert ("content-encoding", "gzip") in got["headers"]


def test_interim_responses_are_passed_over() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
    assert ask(early * 20 + HEAD + b"content-length: 1\r\n\r\na")["body"] == b"a"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"junk",
        b"\x16\x03\x01",
        b"hello\r\n\r\n",
        HEAD,
        HEAD + b"a: b\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        HEAD + b"content-length: +3\r\n\r\nabc",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"a : b\r\n\r\n",
        HEAD + b"a b: c\r\n\r\n",
        HEAD + b": c\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b"a: \x00\r\n\r\n",
        HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 101 + OK,
    ],
)
def test_what_is_no_response_fails_the_request(response: bytes) -> None:
    assert failure(response) == NOT_SENT


@pytest.mark.parametrize(
    "response",
    [
        HEAD + b"content-length: 9\r\n\r\nabc",
        CHUNKED + b"4\r\nabcd\r\n",
        CHUNKED + b"4\r\nabcd\r\n0\r\n",
        CHUNKED + b"4\r\nabcdXX0\r\n\r\n",
        CHUNKED + b"zz\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffffffffff\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"1" + b"0" * 30 + b"\r\n",
        CHUNKED + b"1;" + b"x" * (2 * HEAD_BYTES + 65536),
        CHUNKED + b"0\r\n" + b"x: y\r\n" * HEAD_BYTES,
    ],
)
def test_a_body_that_breaks_off_is_no_answer(response: bytes) -> None:
    assert failure(response) == CUT


def test_a_reset_in_the_body_is_no_answer() -> None:
    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(HEAD + b"\r\nabc")
        peer.reset()

    with serving(play) as server, pytest.raises(InternalError, match="error decoding response body"):
        Caller().ask(server.url)


@pytest.mark.parametrize("line", [b"a:\r\n", b"a: " + b"v" * 1000 + b"\r\n", b"v" * 1000])
def test_endless_headers_are_given_up(line: bytes) -> None:
    sent = []

    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(HEAD)
        while True:
            peer.send(line * 100)
            sent.append(len(line) * 100)

    with serving(play) as server:
        with pytest.raises(InternalError, match="error sending request"):
            Caller().ask(server.url)
        wait_until(lambda: server.failures, pause=gevent.sleep)
    assert sum(sent) < 8 * 1024 * 1024  # what fits into the sockets, not what a server can make


def test_endless_interim_responses_are_given_up() -> None:
    def play(peer: Peer) -> None:
        peer.read_request()
        while True:
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 50)

    with serving(play) as server, pytest.raises(InternalError, match="error sending request"):
        Caller().ask(server.url)


def test_others_have_their_turn_while_a_server_sends_tiny_chunks() -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    counter = gevent.spawn(count)
    try:
        got = ask(CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
    finally:
        counter.kill()
    assert got["body"] == b"x" * 20_000
    assert turns > 20_000 // 256


def test_a_server_may_answer_before_it_has_read_the_request() -> None:
    def play(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        peer.sock.shutdown(2)

    with serving(play) as server:
        got = Caller().ask(server.url, method="POST", body_base64=b"x" * 4_000_000)
    assert (got["status"], got["body"]) == (413, b"big")


def test_a_server_may_send_while_it_reads() -> None:
    size = 12_000_000  # more than both sockets hold

    def play(peer: Peer) -> None:
        left = size
        data = peer.sock.recv(65536).partition(b"\r\n\r\n")[2]
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while True:
            peer.send(data)
            left -= len(data)
            if not left:
                return
            data = peer.sock.recv(65536)

    with serving(play) as server:
        got = Caller().ask(server.url, method="POST", body_base64=b"x" * size)
    assert got["body"] == b"x" * size


class FakeSocket:
    """A socket that has some bytes and then nothing, or its end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.timeout: float | None = None

    def settimeout(self, timeout: float | None) -> None:
        self.timeout = timeout

    def recv(self, size: int) -> bytes:
        if not self.pieces:
            if self.timeout is None:
                return b""
            raise BlockingIOError
        piece = self.pieces.pop(0)
        if len(piece) > size:
            self.pieces.insert(0, piece[size:])
        return piece[:size]

    def close(self) -> None:
        self.pieces = []


def pieces_of(data: list[bytes]) -> Iterator[bytes]:
    exchange = Exchange(FakeSocket(data), "GET")  # type: ignore[arg-type]
    exchange.receive_head()
    while piece := exchange.read():
        yield piece


def test_what_is_there_already_comes_in_one_piece() -> None:
    size = JOINED_BYTES * 3
    got = [len(piece) for piece in pieces_of([HEAD + b"content-length: %d\r\n\r\n" % size, b"x" * size])]
    assert sum(got) == size
    assert len(got) <= 4
    assert max(got) < 1024 * 1024


def test_what_came_before_a_failure_is_returned_first() -> None:
    pieces = pieces_of([CHUNKED + b"4\r\nabcd\r\nzz\r\n"])
    assert next(pieces) == b"abcd"
    with pytest.raises(BrokenResponse):
        next(pieces)


@given(st.lists(st.binary(max_size=12), max_size=5), st.randoms(use_true_random=False))
def test_a_chunked_body_arrives_however_it_is_cut(chunks: list[bytes], random: Any) -> None:
    stream = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks if each) + b"0\r\n\r\n"
    cuts = sorted({random.randrange(1, len(stream)) for _ in range(random.randrange(8))})
    borders = [0, *cuts, len(stream)]
    parts = [stream[start:end] for start, end in pairwise(borders)]
    assert b"".join(pieces_of(parts)) == b"".join(chunks)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_response_or_a_broken_one(noise: bytes) -> None:
    for prefix in (b"", HEAD, CHUNKED, HEAD + b"content-length: 3\r\n\r\n"):
        try:
            list(pieces_of([prefix + noise]))
        except BrokenResponse:
            pass


def test_nothing_is_left_of_a_failed_exchange(recwarn: pytest.WarningsRecorder) -> None:
    server = ScriptedServer(answering(b"junk"))
    try:
        for _ in range(5):
            with pytest.raises(InternalError):
                Caller().ask(server.url)
    finally:
        server.close()
    assert not recwarn.list
