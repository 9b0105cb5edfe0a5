"""The client's end of a WebSocket against independent servers: gevent-websocket, and raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.pywsgi import WSGIServer
from geventwebsocket.handler import WebSocketHandler

from execserver.client import (
    ExecServerClientConnectOptions,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.carriers.websocket_transport import WebSocketTransport
from tests.client.raw_peer import Raw, raw, text

MIB = 1024 * 1024
OPTIONS = ExecServerClientConnectOptions()


def open_transport(
    url: str, options: ExecServerClientConnectOptions = OPTIONS, timeout: float = 20.0
) -> WebSocketTransport:
    return WebSocketTransport.connect(url, options, timeout)


@contextmanager
def independent(app: Callable[[Any], None]) -> Iterator[str]:
    """Serve `app` with gevent-websocket, which shares no code with this project; yield its URL."""

    def wsgi(environ: dict[str, Any], start_response: object) -> list[bytes]:
        app(environ["wsgi.websocket"])
        return []

    server = WSGIServer(("127.0.0.1", 0), wsgi, handler_class=WebSocketHandler, log=None, error_log=None)
    server.start()
    try:
        yield f"ws://127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0)


class TestWithAnIndependentServer:
    def test_messages_go_both_ways_unchanged(self) -> None:
        def echo(ws: Any) -> None:
            while (message := ws.receive()) is not None:
                ws.send(message)

        with independent(echo) as url:
            transport = open_transport(url)
            for message in (b"{}", "ä€😀".encode(), b"x" * 200, b"y" * 70_000):
                transport.send(message)
                assert transport.receive() == message
            transport.close()

    def test_many_messages_of_many_greenlets_stay_whole(self) -> None:
        received: list[str] = []

        def collect(ws: Any) -> None:
            while (message := ws.receive()) is not None:
                received.append(message)
            done.set()

        done = Event()
        with independent(collect) as url:
            transport = open_transport(url)
            messages = [str(number) * 3000 for number in range(40)]
            gevent.joinall([gevent.spawn(transport.send, message.encode()) for message in messages])
            transport.close()
            assert done.wait(20)
        assert sorted(received) == sorted(messages)

    def test_a_large_message_arrives_in_fragments(self) -> None:
        lengths: list[int] = []

        def measure(ws: Any) -> None:
            lengths.append(len(ws.receive()))
            ws.send("got it")

        options = ExecServerClientConnectOptions(send_fragment_bytes=10_000)
        with independent(measure) as url:
            transport = open_transport(url, options)
            transport.send(b"z" * 100_001)
            assert transport.receive() == b"got it"
            transport.close()
        assert lengths == [100_001]

    def test_a_server_that_closes_in_good_order_is_the_end(self) -> None:
        with independent(lambda ws: ws.close()) as url:
            transport = open_transport(url)
            assert transport.receive() is None
            assert transport.receive() is None
            with pytest.raises(TransportClosed):
                transport.send(b"{}")
            transport.close()

    def test_closing_sends_a_close_frame(self) -> None:
        ended = Event()

        def watch(ws: Any) -> None:
            if ws.receive() is None:
                ended.set()

        with independent(watch) as url:
            open_transport(url).close()
            assert ended.wait(20)


class TestOnTheWire:
    def test_the_upgrade_request_offers_nothing_and_names_no_origin(self) -> None:
        heads: list[list[bytes]] = []

        def play(peer: Raw) -> None:
            heads.append(peer.accept().split(b"\r\n"))
            peer.wait_for_end()

        with raw(play) as url:
            open_transport(
                url + "/some/path?x=1", ExecServerClientConnectOptions(headers={"Authorization": "Bearer t"})
            ).close()
        (lines,) = heads
        names = [line.split(b":")[0].lower() for line in lines[1:]]
        assert lines[0] == b"GET /some/path?x=1 HTTP/1.1"
        assert b"Authorization: Bearer t" in lines
        assert set(names) == {
            b"host",
            b"upgrade",
            b"connection",
            b"sec-websocket-key",
            b"sec-websocket-version",
            b"authorization",
        }

    def test_a_message_that_comes_with_the_upgrade_answer_is_not_lost(self) -> None:
        def play(peer: Raw) -> None:
            peer.accept(text(b"early"))
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            assert transport.receive() == b"early"
            transport.close()

    def test_fragments_cut_anywhere_with_pings_between_make_one_message(self) -> None:
        message = "ä€😀 and more".encode()
        pongs: list[tuple[int, bytes]] = []

        def play(peer: Raw) -> None:
            peer.accept()
            stream = text(message[:1], 0x01)
            for byte in message[1:-1]:
                stream += text(bytes((byte,)), 0x00) + text(b"p", 0x89)
            stream += text(message[-1:], 0x80)
            for start in range(0, len(stream), 3):
                peer.send(stream[start : start + 3])
            pongs.append(peer.frame())
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            assert transport.receive() == message
            gevent.sleep(0.01)
            transport.close()
        assert pongs == [(0x8A, b"p")]

    def test_binary_messages_are_messages(self) -> None:
        def play(peer: Raw) -> None:
            peer.accept(text(b"{}", 0x82))
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            assert transport.receive() == b"{}"
            transport.close()

    def test_fragments_that_go_out_are_of_the_chosen_size(self) -> None:
        frames: list[tuple[int, int]] = []

        def play(peer: Raw) -> None:
            peer.accept()
            for _ in range(3):
                first, payload = peer.frame()
                frames.append((first, len(payload)))
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            transport.send(b"x" * (8 * MIB + 5))
            transport.close()
        assert frames == [(0x01, 4 * MIB), (0x00, 4 * MIB), (0x80, 5)]

    def test_an_abrupt_end_is_an_ordinary_end(self) -> None:
        with raw(lambda peer: void(peer.accept())) as url:
            transport = open_transport(url)
            assert transport.receive() is None
            transport.close()

    @pytest.mark.parametrize(
        ("stream", "complaint"),
        [
            (b"\x81\x81\x00\x00\x00\x00x", "masking"),
            (b"\xc1\x01x", "reserved bits"),
            (b"\x83\x01x", "opcode"),
            (b"\x80\x01x", "continuation"),
            (b"\x81\x7f" + struct.pack("!Q", 1 << 62), "exceeds limit"),
            (b"\x81\x7f" + struct.pack("!Q", 1001), "exceeds limit"),
            (text(b"x" * 900, 0x01) + text(b"x" * 900, 0x00) + text(b"x" * 900, 0x80), "exceeds limit"),
        ],
    )
    def test_broken_rules_and_passed_limits_are_violations(self, stream: bytes, complaint: str) -> None:
        def play(peer: Raw) -> None:
            peer.accept(stream)
            peer.wait_for_end()

        options = ExecServerClientConnectOptions(max_frame_bytes=1000, max_message_bytes=2500)
        with raw(play) as url:
            transport = open_transport(url, options)
            with pytest.raises(ProtocolViolation, match=complaint):
                transport.receive()
            transport.close()

    def test_the_largest_allowed_frame_is_received(self) -> None:
        def play(peer: Raw) -> None:
            peer.accept()
            peer.send(text(b"x" * (16 * MIB)))
            peer.wait_for_end()

        with raw(play) as url:
            transport = open_transport(url)
            assert transport.receive() == b"x" * (16 * MIB)
            transport.close()

    def test_closing_wakes_the_one_who_receives(self) -> None:
        def play(peer: Raw) -> None:
            peer.accept()
            peer.wait_for_end()

        def receive() -> bool:
            try:
                return transport.receive() is None
            except TransportClosed:
                return True

        with raw(play) as url:
            transport = open_transport(url)
            receiver = gevent.spawn(receive)
            gevent.sleep(0.01)
            transport.close()
            transport.close()
            assert receiver.get(timeout=20)

    def test_closing_does_not_wait_for_a_peer_that_does_not_read(self) -> None:
        leave = Event()

        def play(peer: Raw) -> None:
            peer.accept()
            leave.wait()

        with raw(play) as url:
            transport = open_transport(url)
            sender = gevent.spawn(send_until_closed, transport)
            gevent.sleep(0.05)
            assert not sender.ready()
            with gevent.Timeout(20):
                transport.close()
                assert sender.get() == "closed"
            leave.set()


def void(value: object) -> None:
    """Forget a value."""


def send_until_closed(transport: WebSocketTransport) -> str:
    """Send more than any socket buffer holds."""
    try:
        for _ in range(20):
            transport.send(b"x" * 4 * MIB)
    except TransportClosed:
        return "closed"
    return "sent all"
