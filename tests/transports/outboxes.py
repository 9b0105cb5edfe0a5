"""Outboxes to send by, and what reads and fills them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import gevent
import pytest

from execserver.transports.outbox import HIGH_WATER_BYTES, Outbox
from tests.support.waiting import wait_until
from tests.transports.wires import Marks, take

Pair = tuple[socket.socket, socket.socket]
LOW_WATER_BYTES = HIGH_WATER_BYTES // 2
MUCH = b"m" * (4 * HIGH_WATER_BYTES)  # more than the kernel takes from a small send buffer


def never() -> None:
    raise AssertionError("the peer is not gone")


@pytest.fixture
def packets() -> Iterator[Pair]:
    """A pair of sockets on which each write is a packet of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def outbox_on(
    sock: socket.socket,
    on_broken: Callable[[], None] = never,
    on_written: Callable[[], None] = lambda: None,
    unread: Callable[[], int] = lambda: 0,
) -> Outbox:
    return Outbox(sock.fileno(), Marks(), on_broken, on_written, unread)


@pytest.fixture
def outbox(pair: Pair) -> Iterator[Outbox]:
    made = outbox_on(pair[0])
    yield made
    made.close()


def read_all(outbox: Outbox, peer: socket.socket) -> bytes:
    """Read until nothing is queued any more."""
    data = bytearray()

    def empty() -> bool:
        data.extend(take(peer))
        return not outbox.queued

    wait_until(empty, pause=gevent.sleep)
    return bytes(data + take(peer))


def fill(outbox: Outbox) -> None:
    """Queue more than the high-water mark behind a peer that does not read."""
    outbox.send(MUCH)
    assert outbox.queued > HIGH_WATER_BYTES


def waiters(outbox: Outbox) -> list[gevent.Greenlet[..., object]]:
    """Let a producer and an answer in pieces wait for room."""
    made: list[gevent.Greenlet[..., object]] = [gevent.spawn(outbox.wait_for_room)]
    made.append(gevent.spawn(outbox.stream, [b"a", b"b"]))
    return made
