from __future__ import annotations

import socket

import gevent

from execserver.transports.peer_window import PeerWindow
from tests.support.waiting import wait_until
from tests.transports.wires import fill, take

Pair = tuple[socket.socket, socket.socket]


def test_what_a_peer_has_not_read_shows_in_its_window(tcp_pair: Pair) -> None:
    ours, theirs = tcp_pair
    window = PeerWindow(ours)
    assert window.unread() == 0
    sent = fill(ours)
    wait_until(lambda: window.unread() > 0, pause=gevent.sleep)
    received = 0

    def all_read() -> bool:
        nonlocal received
        received += len(take(theirs))
        return received == sent

    wait_until(all_read, pause=gevent.sleep)
    wait_until(lambda: window.unread() == 0, pause=gevent.sleep)


def test_a_kernel_that_does_not_tell_counts_as_read() -> None:
    class OldKernel:
        """A fake: a socket of a kernel whose structure ends early."""

        def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
            return b"\xff" * 200

    assert PeerWindow(OldKernel()).unread() == 0  # type: ignore[arg-type]
