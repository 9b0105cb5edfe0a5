from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import cast

import gevent
import pytest

from execserver.eventloop import acceptor
from execserver.handlers.context import Call
from execserver.listening import tune
from execserver.settings import Settings
from execserver.transports import listener as listener_module
from execserver.transports.listener import WebSocketListener
from execserver.transports.outbox import Outbox
from tests.support.greenlets import is_active, turns
from tests.support.sockets import need_ipv6
from tests.support.waiting import wait_until
from tests.support.ws_peer import CLOSE, TEXT, client_frame
from tests.transports.frames import FrameReader, ServerFrame
from tests.transports.scene import FakeCall

UPGRADE = (
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def listening(family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    sock = socket.create_server((host, 0), family=family)
    tune(sock, Settings())
    sock.setblocking(False)
    return sock


def is_at_end(sock: socket.socket) -> bool:
    """Tell whether the other side has ended a connection."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class Listening:
    """A listener over a real socket, with fake calls, and the clients of a test."""

    def __init__(self, sock: socket.socket, **settings: float) -> None:
        self.address = sock.getsockname()
        self.family = sock.family
        self.calls: list[FakeCall] = []
        self.listener = WebSocketListener(sock, Settings(**settings), self._make_call)
        self.listener.start()
        self._clients: list[socket.socket] = []

    def _make_call(self, _outbox: Outbox) -> Call:
        self.calls.append(FakeCall({}))
        return cast(Call, self.calls[-1])

    def connect(self) -> socket.socket:
        """Open a connection, without an upgrade."""
        client = socket.socket(self.family)
        self._clients.append(client)
        client.connect(self.address)
        client.setblocking(False)
        return client

    def upgraded(self) -> socket.socket:
        """Open a connection and upgrade it."""
        client = self.connect()
        client.sendall(UPGRADE)
        data = b""

        def switched() -> bool:
            nonlocal data
            try:
                data += client.recv(1)
            except BlockingIOError:
                return False
            return data.endswith(b"\r\n\r\n")

        while not switched():
            turns()
        assert data.startswith(b"HTTP/1.1 101 ")
        return client

    def close(self) -> None:
        """End everything."""
        self.listener.close()
        for client in self._clients:
            client.close()
        wait_until(lambda: self.listener.connections == 0, pause=gevent.sleep)
        turns()


Listen = Callable[..., Listening]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Start a listener; it is closed after the test."""
    made: list[Listening] = []

    def start(sock: socket.socket | None = None, **settings: float) -> Listening:
        made.append(Listening(sock or listening(), **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_connections_are_upgraded_and_served(listen: Listen) -> None:
    server = listen()
    clients = [server.upgraded() for _ in range(3)]
    assert server.listener.connections == 3
    for client in clients:
        client.sendall(client_frame(TEXT, b"{"))
        (answer,) = FrameReader(client).wait_for(1)
        host, port = client.getsockname()
        error = json.loads(answer.payload)["error"]["message"]
        assert f"websocket {host}:{port}: EOF while" in error


def test_silent_peers_lock_nobody_out(listen: Listen) -> None:
    server = listen(waiting_upgrades=3)
    here = server.upgraded()
    silent = [server.connect() for _ in range(5)]
    wait_until(lambda: is_at_end(silent[1]), pause=gevent.sleep)
    assert is_at_end(silent[0])
    assert not any(map(is_at_end, [here, *silent[2:]]))
    server.upgraded()
    assert not is_at_end(here)
    silent[-1].sendall(UPGRADE)
    wait_until(lambda: server.listener.connections == 3, pause=gevent.sleep)


def test_an_ipv6_peer_is_named_in_brackets(listen: Listen) -> None:
    need_ipv6()
    server = listen(listening(socket.AF_INET6))
    client = server.upgraded()
    client.sendall(client_frame(TEXT, b"{"))
    (answer,) = FrameReader(client).wait_for(1)
    assert f"websocket [::1]:{client.getsockname()[1]}: EOF" in answer.payload.decode()


def test_a_message_may_come_with_the_upgrade(listen: Listen) -> None:
    server = listen()
    client = server.connect()
    client.sendall(UPGRADE + client_frame(TEXT, b"{"))
    data = b""

    def answered() -> bool:
        nonlocal data
        try:
            data += client.recv(65536)
        except BlockingIOError:
            pass
        return b'"id":-1}' in data

    wait_until(answered, pause=gevent.sleep)


def test_accepted_sockets_are_tuned(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[socket.socket] = []

    def upgrade(sock: socket.socket, *_rest: object) -> None:
        accepted.append(sock)
        options = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 128 * 1024),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 8),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 16_000),
        ]
        for level, option, value in options:
            assert sock.getsockopt(level, option) == value
        assert not sock.getblocking()
        assert not sock.get_inheritable()

    monkeypatch.setattr(listener_module, "upgrade_at_once", upgrade)
    server = listen()
    server.connect()
    wait_until(lambda: accepted and accepted[0].fileno() == -1, pause=gevent.sleep)


def test_a_request_that_is_here_already_needs_no_greenlet(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(listener_module, "spawn_raw", lambda *work: made.append(work))
    server = listen()
    client = server.connect()
    client.sendall(UPGRADE)
    wait_until(lambda: server.listener.connections == 1, pause=gevent.sleep)
    assert made == []


@pytest.mark.parametrize("request_text", [b"", b"GET /readyz HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n"])
def test_what_is_not_upgraded_is_closed(listen: Listen, request_text: bytes) -> None:
    server = listen(upgrade_timeout_s=0.02)
    client = server.connect()
    client.sendall(request_text)
    FrameReader(client).wait_for_end()
    assert server.calls == []


def test_a_client_that_leaves_is_forgotten_and_lets_its_session_go(listen: Listen) -> None:
    server = listen()
    server.upgraded().close()
    wait_until(lambda: server.listener.connections == 0, pause=gevent.sleep)
    assert server.calls[0].events == ["detach", "context closed"]


def test_a_client_that_resets_before_its_upgrade_harms_nothing(listen: Listen) -> None:
    server = listen()
    client = server.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    turns()
    server.upgraded()
    assert server.listener.connections == 1


def test_clients_are_told_when_the_server_ends(listen: Listen) -> None:
    server = listen()
    readers = [FrameReader(server.upgraded()) for _ in range(2)]
    server.listener.close()
    for reader in readers:
        goodbye = ServerFrame(CLOSE, b"\x03\xe9the server is shutting down")
        assert reader.wait_for(1) == [goodbye]
    with pytest.raises(ConnectionRefusedError):
        server.connect()


class ShortOfDescriptors:
    """A fake listening socket that refuses to accept for some time; the rest is a real one."""

    def __init__(self, real: socket.socket, refusals: int) -> None:
        self._real = real
        self.refusals = refusals
        self.attempts: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts.append(time.monotonic())
        if len(self.attempts) <= self.refusals:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()


def test_a_shortage_of_descriptors_is_waited_out(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pause = 0.02
    monkeypatch.setattr(acceptor, "_RETRY_S", pause)
    sock = ShortOfDescriptors(listening(), 4)
    server = listen(sock)
    server.upgraded()
    assert len(sock.attempts) == 5
    assert not is_active(server.listener._acceptor._retry)
    gaps = [later - earlier for earlier, later in zip(sock.attempts, sock.attempts[1:], strict=False)]
    assert min(gaps) > pause * 0.9  # a loop that only looks busy would starve everybody else
    text = "cannot accept connections for a moment: [Errno 24] Too many open files"
    assert [record.getMessage() for record in caplog.records] == [text] * 4
    server.upgraded()
    assert server.listener.connections == 2


def test_a_listener_can_end_while_it_waits(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_S", 0.001)
    sock = ShortOfDescriptors(listening(), 1_000_000)
    server = listen(sock)
    client = server.connect()
    wait_until(lambda: len(sock.attempts) > 2, pause=gevent.sleep)
    server.listener.close()
    attempts = len(sock.attempts)
    gevent.sleep(0.01)
    assert len(sock.attempts) == attempts
    FrameReader(client).wait_for_end()
