"""The options of every accepted socket.  Imported before the listen URL is printed: no gevent here."""

from __future__ import annotations

import socket

from execserver.settings import Settings

_TCP_RTO_MAX_MS = 44  # linux/tcp.h, since Linux 6.15
_PROBE_GAP_MS = 2000  # else a peer that sleeps for a minute is asked every minute whether it lives
_UNSENT_BYTES = 128 * 1024  # more would only lengthen the queue a keystroke's echo has to pass


def tune(sock: socket.socket, settings: Settings) -> None:
    """Send small messages at once, keep queues short, and notice a dead peer.

    Set on the listening socket before it listens: what is accepted inherits all of it on Linux, also who
    connects while the server is still starting.
    """
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, settings.keepalive_idle_s)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, settings.keepalive_interval_s)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, settings.keepalive_probes)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(settings.tcp_user_timeout_s * 1000))
    try:
        sock.setsockopt(tcp, _TCP_RTO_MAX_MS, _PROBE_GAP_MS)
    except OSError:
        pass  # an older kernel
