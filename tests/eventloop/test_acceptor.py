from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator

import gevent
import pytest

from execserver.eventloop import acceptor
from execserver.eventloop.acceptor import Acceptor
from tests.support.waiting import wait_until

_log = logging.getLogger(__name__)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Return a socket that listens on loopback; the acceptor closes it."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    yield sock
    sock.close()


def connect(sock: socket.socket) -> socket.socket:
    return socket.create_connection(sock.getsockname())


def test_each_connection_is_handed_over_until_the_end(listening: socket.socket) -> None:
    found: list[tuple[str, int]] = []

    def accepted(sock: socket.socket, address: tuple[str, int]) -> None:
        found.append(address)
        sock.close()

    tested = Acceptor(listening, accepted, lambda: None, _log)
    tested.start()
    with connect(listening) as one, connect(listening) as two:
        wait_until(lambda: len(found) == 2, pause=gevent.sleep)
        assert found == [one.getsockname(), two.getsockname()]
    tested.close()
    assert listening.fileno() == -1


class Refusing(socket.socket):
    """A listening socket that accepts nothing."""

    def accept(self) -> tuple[socket.socket, object]:
        """Fail as without descriptors."""
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_failure_makes_room_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_S", 0.01)
    rooms: list[None] = []
    with Refusing() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        tested = Acceptor(sock, lambda *_: None, lambda: rooms.append(None), _log)
        tested.start()
        with connect(sock):
            wait_until(lambda: len(rooms) > 2, pause=gevent.sleep)
        tested.close()
    assert {record.name for record in caplog.records} == {__name__}
