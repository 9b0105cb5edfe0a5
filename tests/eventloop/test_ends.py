"""The sockets of a proxy: they wait like others, end like others, and leave nothing behind."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest
from gevent import socket

from execserver.eventloop import ends
from execserver.eventloop.ends import End, connected, for_gevent, of_gevent
from execserver.eventloop.workers import Workers
from execserver.services.egress.streams import Incoming
from execserver.services.egress.tunnel import Tunnel
from tests.support.greenlets import turns

ANSWER_S = 20.0


@contextmanager
def pair() -> Iterator[tuple[End, socket.socket]]:
    """Yield an end, and the socket at the other end."""
    one, other = socket.socketpair()
    other.settimeout(ANSWER_S)
    with of_gevent(one) as end, other:
        yield end, other


def test_reading_waits_for_bytes_and_returns_none_at_the_end() -> None:
    with pair() as (end, other):
        reading = gevent.spawn(end.recv, 10)
        turns()
        assert not reading.ready()
        other.sendall(b"a")
        assert reading.get(timeout=ANSWER_S) == b"a"
        other.shutdown(socket.SHUT_WR)
        assert end.recv(10) == b""


def test_reading_ends_at_its_limit_and_goes_on_behind_it() -> None:
    with pair() as (end, other):
        with pytest.raises(TimeoutError):
            end.recv(10, 0.01)
        other.sendall(b"a")
        assert end.recv(10, 0.0) == b"a"


def test_writing_waits_for_room_and_sends_everything() -> None:
    content = bytes(range(256)) * 4096 * 8
    with pair() as (end, other):
        writing = gevent.spawn(end.sendall, content)
        turns()
        assert not writing.ready()
        received = bytearray()
        while len(received) < len(content):
            received += other.recv(65536)
        writing.get(timeout=ANSWER_S)
        assert received == content


def test_two_may_wait_for_one_end() -> None:
    with pair() as (end, other):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reading, writing = gevent.spawn(end.recv, 10), gevent.spawn(end.sendall, bytes(1 << 20))
        turns()
        other.sendall(b"a")
        assert reading.get(timeout=ANSWER_S) == b"a"
        received = 0
        while received < 1 << 20:
            received += len(other.recv(65536))
        writing.get(timeout=ANSWER_S)


def test_closing_wakes_who_waits_with_an_error() -> None:
    with pair() as (end, other):
        reading = gevent.spawn(end.recv, 10)
        turns()
        end.close()
        reading.join(ANSWER_S)
        assert isinstance(reading.exception, OSError)
        assert reading.exception.errno == errno.EBADF
        assert other.recv(10) == b""
        assert end.fileno() == -1


def test_who_is_killed_while_waiting_leaves_the_end_as_it_was() -> None:
    with pair() as (end, other):
        reading = gevent.spawn(end.recv, 10)
        turns()
        reading.kill()
        other.sendall(b"a")
        assert end.recv(10) == b"a"
        assert end._waiting == ()


def test_an_end_is_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        with pair() as (end, other):
            reading = gevent.spawn(end.recv, 10)
            turns()
            other.sendall(b"a")
            assert reading.get(timeout=ANSWER_S) == b"a"
            watched = weakref.ref(reading)
            del reading
            with pytest.raises(TimeoutError):
                end.recv(10, 0.01)
            turns()
            assert watched() is None
    finally:
        gc.enable()


def is_kept_alive(sock: socket.socket | End) -> bool:
    """Return whether the kernel looks for a silent peer, after the seconds that are meant."""
    names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
    seconds = [sock.getsockopt(socket.IPPROTO_TCP, name) for name in names]
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) and seconds == [60, 15, 4]


@pytest.mark.parametrize("way", ["tunnel", "library"])
def test_who_waits_in_another_way_for_a_connection_has_it_kept_alive(way: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pair() as (near, _),
        connected(socket.AF_INET, listener.getsockname()) as end,
    ):
        if way == "library":
            with for_gevent(end) as sock:
                assert is_kept_alive(sock)
            return
        tunnel = Tunnel(Incoming(near), Incoming(end))
        tunnel.start(Workers(), lambda: None)
        assert is_kept_alive(end)
        tunnel.close()


def test_a_connection_is_made_and_keeps_itself_alive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with connected(socket.AF_INET, place) as end:
            other, _ = listener.accept()
            with other:
                with pytest.raises(TimeoutError):
                    end.recv(10, 0.01)
                assert is_kept_alive(end)
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                assert not os.get_inheritable(end.fileno())
                assert not os.get_blocking(end.fileno())


def test_a_port_where_nobody_listens_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
    with pytest.raises(ConnectionRefusedError):
        connected(socket.AF_INET, place)


def test_a_connection_that_takes_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Slow(End):
        def connect_ex(self, place: object) -> int:
            result = super().connect_ex(place)  # type: ignore[arg-type]
            asked.append(result)
            return errno.EALREADY if len(asked) == 2 else result

    monkeypatch.setattr(ends, "End", Slow)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        with connected(socket.AF_INET, place) as end:
            assert end.getpeername() == place
    assert len(asked) == 2


def test_a_connection_that_nobody_answers_is_not_waited_for_too_long() -> None:
    # A queue that is full: the kernel drops what comes, and says nothing.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        with connected(socket.AF_INET, place), pytest.raises(TimeoutError) as raised:
            connected(socket.AF_INET, place, 0.05)
    assert raised.value.errno == errno.ETIMEDOUT


def test_an_end_becomes_a_socket_of_gevent() -> None:
    with pair() as (end, other), for_gevent(end) as sock:
        assert end.fileno() == -1
        other.sendall(b"a")
        assert sock.recv(10) == b"a"
