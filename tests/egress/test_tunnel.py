"""Tunnels that callbacks carry end as those that greenlets carry: the same bytes, the same ends."""

from __future__ import annotations

import errno
import gc
import os
import random
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from execserver.eventloop.ends import End, of_gevent
from execserver.eventloop.workers import Workers
from execserver.services.egress import tunnel as module
from execserver.services.egress.streams import Direction, Incoming, carry
from execserver.services.egress.tunnel import Tunnel
from tests.support.waiting import wait_until

Carry = Callable[[Incoming, Incoming], None]
END = b""
ANSWER_S = 20.0


def by_callbacks(near: Incoming, far: Incoming) -> None:
    """Carry as the proxy does; who is killed closes the tunnel."""
    over = Event()
    tunnel = Tunnel(near, far)
    tunnel.start(Workers(), over.set)
    try:
        over.wait()
    finally:
        tunnel.close()


def by_greenlets(near: Incoming, far: Incoming) -> None:
    """Carry as a tunnel does that has to wait."""
    carry(Direction(near, far.sock), Direction(far, near.sock), module.HALF_OPEN_S)


BOTH = pytest.mark.parametrize("way", [by_callbacks, by_greenlets], ids=["callbacks", "greenlets"])


class Ends:
    """Both ends of a tunnel that is carried, and what they have received."""

    def __init__(
        self, client: socket.socket, server: socket.socket, carrying: gevent.Greenlet[[], None]
    ) -> None:
        self.client = client
        self.server = server
        self.carrying = carrying
        self.received = {client: bytearray(), server: bytearray()}

    def has(self, sock: socket.socket, count: int) -> bool:
        """Return whether an end has received so many bytes."""
        return len(self.received[sock]) == count

    def hear(self, sock: socket.socket) -> None:
        """Receive until the end."""
        with suppress(ConnectionError):
            while data := sock.recv(65536):
                self.received[sock] += data


@contextmanager
def tunnel(way: Carry, first: bytes = b"", said: bytes = b"") -> Iterator[Ends]:
    """Carry; `first` and `said` are what was read of the client and of the server before."""
    client, near = socket.socketpair()
    far, server = socket.socketpair()

    inner, outer = of_gevent(near), of_gevent(far)

    def owner() -> None:
        with inner, outer:
            way(Incoming(inner, first), Incoming(outer, said))

    with client, inner, outer, server:
        for sock in (client, server):
            sock.settimeout(ANSWER_S)
        carrying = gevent.Greenlet.spawn(owner)
        try:
            yield Ends(client, server, carrying)
        finally:
            carrying.kill()
            wait_until(lambda: (inner.fileno(), outer.fileno()) == (-1, -1), pause=gevent.sleep)


@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_arrives_whole_on_both_sides(way: Carry, seed: int) -> None:
    """Pieces from one byte to more than a receiver's buffer holds, in any order, and ends at any time."""
    made = random.Random(seed)
    sizes = [1, 7, 1000, 65_535, 65_536, 65_537, 400_000]
    with tunnel(way, first=b"first", said=b"said" * (seed % 2)) as ends:
        expected = {ends.server: bytearray(b"first"), ends.client: bytearray(b"said" * (seed % 2))}
        hearing = [gevent.spawn(ends.hear, sock) for sock in (ends.client, ends.server)]
        talking = [(ends.client, ends.server), (ends.server, ends.client)]
        while talking:
            speaker, listener = pair = made.choice(talking)
            piece = made.randbytes(made.choice(sizes)) if made.random() > 0.1 else END
            if piece == END:
                speaker.shutdown(socket.SHUT_WR)
                talking.remove(pair)
                continue
            speaker.sendall(piece)
            expected[listener] += piece
            if made.random() < 0.5:
                wait_until(partial(ends.has, listener, len(expected[listener])), pause=gevent.sleep)
        gevent.joinall(hearing, timeout=ANSWER_S, raise_error=True)
        ends.carrying.join(ANSWER_S)
        assert ends.carrying.successful()
        assert ends.received == expected


@BOTH
def test_who_does_not_read_stops_one_direction_alone(way: Carry) -> None:
    content = bytes(range(256)) * 4096 * 8
    with tunnel(way) as ends:
        sending = gevent.spawn(ends.server.sendall, content)
        ends.client.sendall(b"a")
        assert ends.server.recv(10) == b"a"
        wait_until(
            lambda: not gevent.wait([sending], timeout=0.1), pause=gevent.sleep
        )  # all buffers are full
        ends.client.sendall(b"b")
        assert ends.server.recv(10) == b"b"
        hearing = gevent.spawn(ends.hear, ends.client)
        sending.join(ANSWER_S)
        ends.server.shutdown(socket.SHUT_WR)
        hearing.join(ANSWER_S)
        assert ends.received[ends.client] == content


@BOTH
@pytest.mark.parametrize("gone", ["client", "server"])
def test_a_side_that_is_gone_ends_the_tunnel(way: Carry, gone: str) -> None:
    with tunnel(way) as ends:
        ends.client.sendall(b"a")
        assert ends.server.recv(10) == b"a"
        leaving, left = (ends.client, ends.server) if gone == "client" else (ends.server, ends.client)
        leaving.close()
        assert left.recv(10) == b""
        with suppress(ConnectionError):
            for _ in range(1000):  # nobody reads it
                left.sendall(bytes(65536))
        ends.carrying.join(ANSWER_S)
        assert ends.carrying.successful()


@BOTH
@pytest.mark.parametrize("ended", ["client", "server"])
def test_a_silent_rest_of_a_tunnel_ends(way: Carry, ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HALF_OPEN_S", 0.05)
    with tunnel(way) as ends:
        ends.client.sendall(b"a")
        assert ends.server.recv(10) == b"a"
        (ends.client if ended == "client" else ends.server).shutdown(socket.SHUT_WR)
        ends.carrying.join(ANSWER_S)
        assert ends.carrying.successful()


@BOTH
def test_the_rest_of_a_tunnel_goes_on_while_it_says_something(
    way: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HALF_OPEN_S", 2.0)
    with tunnel(way) as ends:
        ends.client.shutdown(socket.SHUT_WR)
        assert ends.server.recv(10) == b""
        for _ in range(8):
            ends.server.sendall(b"b")
            assert ends.client.recv(10) == b"b"
            ends.carrying.join(0.5)
            assert not ends.carrying.ready()


def test_greenlets_that_are_killed_leave_the_sockets_as_they_were() -> None:
    client, one = socket.socketpair()
    other, server = socket.socketpair()
    with client, of_gevent(one) as near, of_gevent(other) as far, server:
        carrying = gevent.Greenlet.spawn(by_greenlets, Incoming(near), Incoming(far))
        client.sendall(b"a")
        server.settimeout(ANSWER_S)
        assert server.recv(10) == b"a"
        carrying.kill()
        client.sendall(b"b")
        assert near.recv(10) == b"b"
        with pytest.raises(TimeoutError):
            far.recv(10, 0.01)


@pytest.mark.parametrize("state", ["new", "used", "half", "waiting"])
def test_a_tunnel_that_is_closed_closes_both_ends_once(state: str) -> None:
    with over_tcp() as (client, near), over_tcp() as (server, far):
        ended: list[None] = []
        tunnel = Tunnel(Incoming(near), Incoming(far))
        tunnel.start(Workers(), lambda: ended.append(None))
        if state in ("used", "half"):
            client.sendall(b"a")
            assert server.recv(10) == b"a"
        if state == "half":
            client.shutdown(socket.SHUT_WR)
            assert server.recv(10) == END
        if state == "waiting":  # in greenlets
            flooding = gevent.spawn(_flood, server)
            wait_until(lambda: not gevent.wait([flooding], timeout=0.1), pause=gevent.sleep)
        tunnel.close()
        tunnel.close()
        assert len(ended) == 1
        wait_until(lambda: (near.fileno(), far.fileno()) == (-1, -1), pause=gevent.sleep)
        with suppress(ConnectionError):
            while client.recv(65536):
                pass
        if state == "waiting":
            flooding.join(ANSWER_S)
            assert flooding.successful()


def test_small_pieces_need_no_greenlet(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(module, "carry", lambda *ways: waited.append(ways))
    with tunnel(by_callbacks) as ends:
        for size in (1, 60_000, 3):
            ends.client.sendall(bytes(size))
            assert ends.server.recv(65536) == bytes(size)
            ends.server.sendall(b"k")
            assert ends.client.recv(10) == b"k"
        ends.server.shutdown(socket.SHUT_WR)
        assert ends.client.recv(10) == b""
        ends.client.shutdown(socket.SHUT_WR)
        ends.carrying.join(ANSWER_S)
        assert ends.carrying.successful()
    assert waited == []


@contextmanager
def over_tcp() -> Iterator[tuple[socket.socket, End]]:
    """Yield the two ends of a connection; one is the tunnel's."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
    one.settimeout(ANSWER_S)
    with one, of_gevent(other) as end:
        yield one, end


def reset(sock: socket.socket) -> None:
    """Leave with a reset, as a process that is killed with bytes unread does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@BOTH
@pytest.mark.parametrize("gone", ["client", "server"])
@pytest.mark.parametrize("state", ["new", "used", "client ended", "server ended", "flooded"])
def test_a_reset_ends_a_tunnel_in_each_state(way: Carry, gone: str, state: str) -> None:
    with over_tcp() as (client, near), over_tcp() as (server, far):
        carrying = gevent.Greenlet.spawn(owned, way, Incoming(near), Incoming(far))
        ends = {"client": client, "server": server}
        leaving = ends.pop(gone)
        ((name_left, left),) = ends.items()
        if state != "new":
            client.sendall(b"a")
            assert server.recv(10) == b"a"
        if state == "flooded":  # the one that leaves reads nothing
            flooding = gevent.spawn(_flood, left)
            wait_until(lambda: not gevent.wait([flooding], timeout=0.1), pause=gevent.sleep)
        elif state.endswith("ended"):
            ended, other = (client, server) if state.startswith("client") else (server, client)
            ended.shutdown(socket.SHUT_WR)
            assert other.recv(10) == END
        reset(leaving)
        if state != "flooded" and not state.startswith(name_left):  # whose half has ended says no more
            _flood(left)
        carrying.join(ANSWER_S)
        assert carrying.successful()
        if state == "flooded":
            flooding.join(ANSWER_S)
            assert flooding.successful()


def owned(way: Carry, near: Incoming, far: Incoming) -> None:
    """Carry, and close, as the proxy does."""
    with near.sock, far.sock:
        way(near, far)


def _flood(sock: socket.socket) -> None:
    """Send until it fails."""
    with suppress(OSError):
        for _ in range(1000):
            sock.sendall(bytes(65536))


@BOTH
@pytest.mark.parametrize("end", ["both", "killed", "reset"])
def test_an_ended_tunnel_is_freed_without_the_collector(way: Carry, end: str) -> None:
    gc.collect()
    gc.disable()
    try:
        with over_tcp() as (client, near), over_tcp() as (server, far):
            incoming = WatchedIncoming(near)
            watched = weakref.ref(incoming)
            carrying = gevent.Greenlet.spawn(owned, way, incoming, Incoming(far))
            del incoming
            client.sendall(b"a")
            assert server.recv(10) == b"a"
            if end == "both":
                client.shutdown(socket.SHUT_WR)
                server.shutdown(socket.SHUT_WR)
            elif end == "reset":
                reset(client)
                _flood(server)
            else:
                carrying.kill()
            carrying.join(ANSWER_S)
            assert carrying.ready()
            del carrying
            gevent.idle()
            assert watched() is None
    finally:
        gc.enable()


class WatchedIncoming(Incoming):
    """One that weak references may lead to."""


def test_without_a_descriptor_for_a_pipe_a_long_stream_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(flags: int) -> tuple[int, int]:
        asked.append(flags)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe2", refuse)
    content = bytes(range(256)) * 4096 * 8
    with tunnel(by_greenlets) as ends:
        hearing = gevent.spawn(ends.hear, ends.client)
        ends.server.sendall(content)
        ends.server.shutdown(socket.SHUT_WR)
        hearing.join(ANSWER_S)
        assert ends.received[ends.client] == content
    assert asked
