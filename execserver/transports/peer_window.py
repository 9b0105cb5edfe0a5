"""How much data the peer has received but not read, estimated from the TCP window it advertises.

The kernels of both sides buffer megabytes of a fast stream, and a small message behind them arrives late,
however fast it was sent.  The peer's window says how full its buffer is: the widest window seen, minus the
present one, is about what lies there unread.
"""

from __future__ import annotations

import socket
import struct

_SND_WND_AT, _INFO_BYTES = 228, 232  # linux/tcp.h, struct tcp_info; not there before Linux 5.4


class PeerWindow:
    """The receive window of one peer.  An estimate: the kernel may widen or narrow the window by itself."""

    __slots__ = ("_sock", "_widest")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._widest = 0

    def unread(self) -> int:
        """Return about how many bytes wait at the peer; 0 if the kernel does not report it."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return 0
        (window,) = struct.unpack_from("I", info, _SND_WND_AT)
        if window > self._widest:
            self._widest = window
        return int(self._widest - window)
