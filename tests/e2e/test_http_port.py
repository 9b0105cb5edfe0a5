"""The HTTP side of the one port, over real sockets: what is answered, and when a connection is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.raw_http import RawHttp, as_bytes
from tests.support.server_process import ServerProcess
from tests.support.ws_peer import TEXT, client_frame

UPGRADE = """GET /?x=1 HTTP/1.1
    Connection: keep-alive, Upgrade
    Upgrade: WebSocket
    Sec-WebSocket-Version: 13
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="""


@pytest.fixture
def http(server: ServerProcess) -> Iterator[RawHttp]:
    """A fresh TCP connection to the port."""
    with RawHttp(server.url) as connection:
        yield connection


def test_readiness_answers_on_one_connection_again_and_again(http: RawHttp) -> None:
    for _ in range(3):
        response = http.ask("GET /readyz HTTP/1.1\nHost: x")
        assert (response.version, response.status, response.body) == ("HTTP/1.1", 200, b"")
        assert response.headers["content-length"] == "0"


def test_a_connection_outlives_every_refusal_and_can_then_be_upgraded(http: RawHttp) -> None:
    assert http.ask("HEAD /readyz HTTP/1.1").status == 200
    assert http.ask("DELETE /readyz HTTP/1.1").headers["allow"] == "GET,HEAD"
    assert http.ask("GET /readyz/ HTTP/1.1").status == 404
    assert http.ask("GET / HTTP/1.1").status == 400
    assert http.ask("PUT / HTTP/1.1").status == 405
    assert http.ask("GET / HTTP/1.1\nOrigin: null").status == 403
    upgraded = http.ask(UPGRADE)
    assert upgraded.status == 101
    assert upgraded.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("path", ["/", "/readyz", "/nowhere"])
@pytest.mark.parametrize("origin", ["", "null", "http://127.0.0.1"])
def test_a_browser_is_refused_wherever_it_asks(http: RawHttp, path: str, origin: str) -> None:
    response = http.ask(UPGRADE.replace("/?x=1", path) + f"\nOrigin: {origin}")
    assert (response.status, response.body) == (403, b"")


def test_an_upgrade_elsewhere_is_not_found(http: RawHttp) -> None:
    assert http.ask(UPGRADE.replace("/?x=1", "/ws")).status == 404


def test_old_http_is_answered_as_such_and_closed(http: RawHttp) -> None:
    response = http.ask("GET /readyz HTTP/1.0")
    assert (response.version, response.status) == ("HTTP/1.0", 200)
    assert http.wait_for_end() == b""


def test_a_client_that_asks_to_close_is_closed(http: RawHttp) -> None:
    assert http.ask("GET /readyz HTTP/1.1\nConnection: close").status == 200
    assert http.wait_for_end() == b""


def test_pipelined_requests_are_answered_in_order(http: RawHttp) -> None:
    requests = ["GET /readyz HTTP/1.1", "GET /nowhere HTTP/1.1", "POST / HTTP/1.1\nContent-Length: 0"]
    http.send(b"".join(map(as_bytes, requests)) + as_bytes(UPGRADE))
    assert [http.response().status for _ in range(4)] == [200, 404, 405, 101]


def test_a_head_that_arrives_byte_by_byte_is_understood(http: RawHttp) -> None:
    head = as_bytes("GET /readyz HTTP/1.1")
    for index in range(len(head)):
        http.send(head[index : index + 1])
    assert http.response().status == 200


@pytest.mark.parametrize(
    "garbage",
    [b"nonsense", b"GET / HTTP/3.0", b"GET /a b HTTP/1.1", b"\x16\x03\x01\x02\x00"],
    ids=["no words", "version", "space in path", "tls"],
)
def test_what_is_no_http_is_refused_and_closed(http: RawHttp, garbage: bytes) -> None:
    http.send(garbage + b"\r\n\r\n")
    response = http.response()
    assert (response.status, response.body) == (400, b"")
    assert response.headers["connection"] == "close"
    assert http.wait_for_end() == b""


def test_messages_in_the_segment_of_the_upgrade_are_served(server: ServerProcess) -> None:
    hello = client_frame(TEXT, b'{"id":1,"method":"initialize","params":{"clientName":"hasty"}}')
    unknown = client_frame(TEXT, b'{"id":2,"method":"nope"}')

    def hasty(data: bytes) -> Iterator[bytes]:
        yield data + hello + unknown if data.startswith(b"GET ") else data

    with server.connect(hasty) as peer:
        first, second = peer.take({"id": 1}), peer.take({"id": 2})
    assert "sessionId" in first["result"]
    assert second["error"]["code"] == -32601
