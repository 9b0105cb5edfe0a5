"""Distinguishes a peer that is gone from one that only does not read.

The kernel ends a connection whose data stays unacknowledged for TCP_USER_TIMEOUT.  A closed window counts the
same way (measured: a client that sleeps for 15 s with unread output loses its connection), although such a
peer is alive and answers every window probe.  So the timeout is lifted while the window is closed, and a peer
that answers no probe for as long is abandoned here.

Nothing runs while all written data is acknowledged: idle connections cost nothing, and the kernel's
keep-alive probes check them.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

from gevent.hub import get_hub

SWEEP_S = 2.5
_UNANSWERED_PROBES = 2  # one may be on its way
# linux/tcp.h, struct tcp_info: probes without answer, segments in flight, milliseconds since the last
# acknowledgement, bytes not sent yet.
_PROBES_AT, _UNACKED_AT, _LAST_ACK_AT, _NOT_SENT_AT, _INFO_BYTES = 3, 24, 56, 144, 148


class TcpInfo(NamedTuple):
    """What the kernel knows about the sending side of a connection."""

    probes: int
    unacked: int
    not_sent: int
    silent_s: float

    @classmethod
    def parse(cls, info: bytes) -> TcpInfo:
        """Decode the kernel's structure; from one that is too short (an old kernel), return zeros."""
        if len(info) < _INFO_BYTES:
            return cls(0, 0, 0, 0.0)
        (unacked,) = struct.unpack_from("I", info, _UNACKED_AT)
        (silent_ms,) = struct.unpack_from("I", info, _LAST_ACK_AT)
        (not_sent,) = struct.unpack_from("I", info, _NOT_SENT_AT)
        return cls(info[_PROBES_AT], unacked, not_sent, silent_ms / 1000)

    @property
    def window_closed(self) -> bool:
        """True if data waits although nothing is in flight: the peer takes no more."""
        return self.not_sent > 0 and self.unacked == 0

    @property
    def settled(self) -> bool:
        """True if everything was acknowledged."""
        return self.not_sent == 0 and self.unacked == 0

    def is_gone(self, timeout_s: float) -> bool:
        """Return whether the window is closed and the peer has answered no probe for `timeout_s` seconds.

        Silence alone means little: kernels before 6.15 probe a peer that does not read more and more rarely.
        """
        return self.window_closed and self.probes >= _UNANSWERED_PROBES and self.silent_s >= timeout_s


class Peer(Protocol):
    """A connection that can be watched."""

    @property
    def sock(self) -> socket.socket:
        """The socket of the connection."""

    def give_up(self) -> None:
        """Release everything: the peer is gone."""


class LivenessSweep:
    """Watches the connections that have unacknowledged data."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._watched: dict[Peer, bool] = {}  # and whether the window was closed at the last look
        self._timer = get_hub().loop.timer(SWEEP_S, SWEEP_S)

    def written(self, peer: Peer) -> None:
        """Watch a peer to which something was sent, until it has acknowledged everything."""
        if peer in self._watched:
            return
        if not self._watched:
            self._timer.again(self._sweep)
        self._watched[peer] = False

    def taken_over(self, peer: Peer) -> None:
        """Go on with a peer of the program before this one, which may have lifted the timeout."""
        is_lifted = not peer.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        self.written(peer)
        self._watched[peer] = is_lifted
        self._look(peer, is_lifted)  # at once: many upgrades in a row would put every look off

    def forget(self, peer: Peer) -> None:
        """Stop watching a peer whose socket is about to be closed."""
        self._watched.pop(peer, None)

    def _sweep(self) -> None:
        for peer, was_closed in list(self._watched.items()):
            self._look(peer, was_closed)
        if not self._watched:
            self._timer.stop()

    def _look(self, peer: Peer, was_closed: bool) -> None:
        raw = peer.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        info = TcpInfo.parse(raw)
        if info.is_gone(self._timeout_s):
            self.forget(peer)
            peer.give_up()
            return
        if info.window_closed != was_closed:
            self._watched[peer] = info.window_closed
            set_user_timeout(peer.sock, 0.0 if info.window_closed else self._timeout_s)
        if info.settled:
            self.forget(peer)


def set_user_timeout(sock: socket.socket, seconds: float) -> None:
    """Set how long data may stay unacknowledged; 0 leaves it to the kernel's retries."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
