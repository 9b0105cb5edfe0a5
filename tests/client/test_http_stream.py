"""Streamed HTTP bodies over the fake server: order, loss, bounds."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from execserver.client import ExecServerClient, HttpFailed, HttpStream, MethodNotFoundError, TransportClosed
from tests.client.conftest import QUICK
from tests.client.fake_server import FakeServer, Refusal, drop

OPTIONS = QUICK.replace(max_unread_bytes=10_000, max_unread_bytes_while_waiting=20_000)


@pytest.fixture
def stream(fake: FakeServer) -> Iterator[HttpStream]:
    """An open stream with the id `http-1`."""
    fake.answers["http/request"] = lambda params: {
        "status": 206,
        "headers": [{"name": "x-a", "value": "1"}],
        "bodyBase64": "",
    }
    with ExecServerClient(fake.open_transport, OPTIONS) as client:
        yield client.http_stream("GET", "http://host/")


def piece(
    fake: FakeServer, seq: int, data: bytes = b"", *, done: bool = False, error: str | None = None
) -> None:
    fake.current.push(
        "http/request/bodyDelta",
        requestId="http-1",
        seq=seq,
        deltaBase64=base64.b64encode(data).decode(),
        done=done,
        error=error,
    )


def test_the_request_is_the_contracts(stream: HttpStream, fake: FakeServer) -> None:
    assert fake.asked("http/request")[0].params == {
        "method": "GET",
        "url": "http://host/",
        "headers": [],
        "bodyBase64": None,
        "timeoutMs": None,
        "requestId": "http-1",
        "streamResponse": True,
        "redirectPolicy": "follow",
    }
    assert (stream.status, stream.header("X-A")) == (206, "1")


def test_pieces_come_in_order_until_the_last(stream: HttpStream, fake: FakeServer) -> None:
    piece(fake, 1, b"a")
    piece(fake, 2, b"b")
    piece(fake, 3, done=True)
    assert list(stream) == [b"a", b"b"]
    assert list(stream) == []


def test_an_error_comes_after_what_arrived(stream: HttpStream, fake: FakeServer) -> None:
    piece(fake, 1, b"a")
    piece(fake, 2, done=True, error="error decoding response body")
    assert next(stream) == b"a"
    with pytest.raises(HttpFailed, match="error decoding response body"):
        next(stream)


def test_a_missing_piece_is_an_error(stream: HttpStream, fake: FakeServer) -> None:
    piece(fake, 1, b"a")
    piece(fake, 3, b"c")
    assert next(stream) == b"a"
    with pytest.raises(HttpFailed, match="piece 2 of the body is missing"):
        next(stream)


def test_a_lost_connection_ends_the_stream(stream: HttpStream, fake: FakeServer) -> None:
    piece(fake, 1, b"a")
    drop(fake)
    assert next(stream) == b"a"
    with pytest.raises(TransportClosed):
        next(stream)


def test_streams_of_the_next_connection_get_their_pieces(fake: FakeServer) -> None:
    fake.answers["http/request"] = lambda params: {"status": 200, "headers": [], "bodyBase64": ""}
    with ExecServerClient(fake.open_transport, OPTIONS) as client:
        client.http_stream("GET", "http://host/")
        drop(fake)
        stream = client.http_stream("GET", "http://host/")
        delta = {"requestId": "http-2", "seq": 1, "deltaBase64": "YQ==", "done": True}
        fake.current.push("http/request/bodyDelta", **delta)
        assert list(stream) == [b"a"]


def test_what_nobody_reads_is_bounded(fake: FakeServer) -> None:
    fake.answers["http/request"] = lambda params: {"status": 200, "headers": [], "bodyBase64": ""}
    fake.answers["m"] = lambda params: "answered"
    with ExecServerClient(fake.open_transport, OPTIONS) as client:
        stream = client.http_stream("GET", "http://host/")
        for seq in range(1, 100):
            piece(fake, seq, b"x" * 1000)
        # Without a caller that waits the client would only stop reading.
        assert client.call("m") == "answered"
        with pytest.raises(HttpFailed, match="not read fast enough"):
            next(stream)


def test_a_refused_request_leaves_no_stream(fake: FakeServer) -> None:
    def refuse(params: object) -> object:
        raise Refusal(-32601, "no http")

    fake.answers["http/request"] = refuse
    with ExecServerClient(fake.open_transport, OPTIONS) as client, pytest.raises(MethodNotFoundError):
        client.http_stream("GET", "http://host/")


def test_pieces_after_closing_are_ignored(stream: HttpStream, fake: FakeServer) -> None:
    piece(fake, 1, b"a")
    stream.close()
    piece(fake, 2, b"b")
    piece(fake, 3, done=True)
    assert list(stream) == []
