"""Records of a zygote stay where they are until they have been dealt with."""

from __future__ import annotations

import _socket
from collections.abc import Iterator

import pytest

from execserver.services.surviving.spawner import LookingSocket
from execserver.zygote.channel import receive_record, send_record

Ends = tuple[LookingSocket, _socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    looking = LookingSocket(fileno=ours.detach())
    yield looking, theirs
    looking.close()
    theirs.close()


def again(sock: LookingSocket) -> LookingSocket:
    """Return what a server behind a killed one has: the same socket, and nothing of its memory."""
    return LookingSocket(fileno=sock.detach())


def content(sock: _socket.socket) -> bytes | None:
    received = receive_record(sock)
    return None if received is None else received[0]


def test_a_record_is_taken_when_the_next_one_is_asked_for(ends: Ends) -> None:
    sock, zygote = ends
    for number in range(3):
        send_record(zygote, b"record %d" % number)
    assert content(sock) == b"record 0"
    assert content(sock) == b"record 1"
    behind = again(sock)
    assert [content(behind), content(behind)] == [b"record 1", b"record 2"]
    behind.setblocking(False)
    with pytest.raises(BlockingIOError):
        content(behind)
    with pytest.raises(BlockingIOError):
        content(behind)
    zygote.close()
    assert content(behind) is None
    behind.close()


def test_a_large_record_can_be_looked_at_twice(ends: Ends) -> None:
    sock, zygote = ends
    large = b"12345678" * 20_000
    send_record(zygote, large)
    assert content(sock) == large
    behind = again(sock)
    assert content(behind) == large
    behind.close()


@pytest.mark.parametrize("looked", [False, True])
def test_what_a_zygote_has_said_before_its_end_is_read_though_it_left_something_unread(
    ends: Ends, looked: bool
) -> None:
    sock, zygote = ends
    for number in range(3):
        send_record(zygote, b"record %d" % number)
    found = [content(sock)] if looked else []
    send_record(sock, b"unread")
    zygote.close()
    found += [content(sock) for _ in range(4 - looked)]
    assert found == [b"record 0", b"record 1", b"record 2", None]
