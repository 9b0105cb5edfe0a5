"""Dialling: what answers an upgrade, and TLS."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest
from gevent import socket
from gevent import ssl as green
from gevent.pool import Pool
from gevent.server import StreamServer

from execserver.client import ConnectFailed, ConnectTimeout, ExecServerClientConnectOptions, InvalidUrl
from execserver.client.carriers.urls import parse_url
from execserver.client.carriers.websocket_transport import WebSocketTransport
from execserver.wire.accepting import accept_value
from tests.client.raw_peer import Raw, raw, text
from tests.support.certificates import make_authority

OPTIONS = ExecServerClientConnectOptions()


def open_transport(
    url: str, options: ExecServerClientConnectOptions = OPTIONS, timeout: float = 20.0
) -> WebSocketTransport:
    return WebSocketTransport.connect(url, options, timeout)


class TestConnecting:
    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 403 Forbidden\r\ncontent-length: 4\r\n\r\nbusy",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-accept: wrong\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"SSH-2.0-OpenSSH\r\n",
            b"",
        ],
    )
    def test_what_is_no_websocket_server_is_reported(self, answer: bytes) -> None:
        def play(peer: Raw) -> None:
            peer.head()
            peer.send(answer)

        with raw(play) as url, pytest.raises(ConnectFailed) as caught:
            open_transport(url)
        if b"403" in answer:
            assert "status 403 busy" in str(caught.value)

    @pytest.mark.parametrize("cut", [1, 20, 150, 10_000])
    def test_an_unusual_answer_is_taken_with_what_comes_behind_it(self, cut: int) -> None:
        def play(peer: Raw) -> None:
            key = re.search(rb"Sec-WebSocket-Key: (\S+)", peer.head())
            assert key is not None
            answer = (
                "HTTP/1.1 101 Fine\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Accept: {accept_value(key[1].decode())}\r\n\r\n"
            ).encode() + text(b"early")
            for start in range(0, len(answer), cut):
                peer.send(answer[start : start + cut])
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            assert transport.receive() == b"early"
            transport.close()

    def test_a_refused_connection_is_reported(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with pytest.raises(ConnectFailed, match="refused"):
                open_transport(f"ws://127.0.0.1:{port}")

    def test_a_server_that_says_nothing_is_given_up(self) -> None:
        with raw(lambda peer: peer.wait_for_end()) as url, pytest.raises(ConnectTimeout, match=r"0\.05 s"):
            open_transport(url, timeout=0.05)

    def test_a_server_that_does_not_speak_tls_is_reported(self) -> None:
        def play(peer: Raw) -> None:
            peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with raw(play) as url, pytest.raises(ConnectFailed):
            open_transport(url.replace("ws://", "wss://"))

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:1", "127.0.0.1:1", "", "ws://", "ws://h:99999", "ws://h/?role=harness"]
    )
    def test_an_unusable_url_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidUrl):
            parse_url(url)

    def test_a_header_cannot_smuggle_another(self) -> None:
        options = ExecServerClientConnectOptions(headers={"X": "a\r\nOrigin: evil"})
        with raw(lambda peer: peer.wait_for_end()) as url, pytest.raises(InvalidUrl, match="line end"):
            open_transport(url, options)


def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    def handle(sock: socket.socket, address: object) -> None:
        peer = Raw(sock)
        peer.accept(text(b"secret"))
        peer.wait_for_end()
        sock.close()

    authority = make_authority()
    (tmp_path / "server.pem").write_bytes(authority.issue("127.0.0.1"))
    serving = green.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "server.pem")
    trusting = green.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(cadata=authority.pem.decode())
    server = StreamServer(("127.0.0.1", 0), handle, spawn=Pool(), ssl_context=serving)
    server.start()
    url = f"wss://127.0.0.1:{server.server_port}"
    transport = open_transport(url, ExecServerClientConnectOptions(ssl_context=trusting))
    assert transport.receive() == b"secret"
    transport.close()
    with pytest.raises(ConnectFailed, match="certificate"):
        open_transport(url)
    blocking = ssl.create_default_context()
    with pytest.raises(TypeError, match="gevent"):
        open_transport(url, ExecServerClientConnectOptions(ssl_context=blocking))
    server.stop(timeout=1)
