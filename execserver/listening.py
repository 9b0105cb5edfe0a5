"""Listening sockets: bound, with the options of all connections they will accept.

Standard library only: a server listens, and prints its URL, before gevent is loaded.
"""

from __future__ import annotations

import _socket

from execserver.listen_url import UnixListen, WsListen
from execserver.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from execserver.unix_socket import BoundFile

_TCP_RTO_MAX_MS = 44  # linux/tcp.h, since Linux 6.15
_PROBE_GAP_MS = 2000  # else the kernel probes a peer that has not read for a minute only once a minute
_UNSENT_BYTES = 128 * 1024  # more would only lengthen the queue in front of a keystroke's echo


def bind_unix(listen: UnixListen, settings: Settings) -> tuple[socket.socket, BoundFile]:
    """Return a listening, non-blocking socket and its file; raise OSError if that is impossible."""
    from execserver.unix_socket import bind_file

    sock, file = bind_file(listen.path)
    try:
        sock.listen(settings.listen_backlog)
    except OSError:
        sock.close()
        file.remove()
        raise
    sock.setblocking(False)
    return sock, file


def bind(listen: WsListen, settings: Settings) -> socket.socket:
    """Return a listening, non-blocking socket; raise OSError if that is impossible."""
    return with_methods(bind_plain(listen, settings))


def with_methods(sock: _socket.socket) -> socket.socket:
    """Return a socket of the interpreter's core as one of `socket`, to which its descriptor goes over."""
    import socket  # late: with the enumerations of its names it is a fifth of the way to the URL

    return socket.socket(sock.family, sock.type, sock.proto, sock.detach())


def bind_plain(listen: WsListen, settings: Settings) -> _socket.socket:
    """Return what `bind` does, but as a socket of the interpreter's core; raise OSError like it."""
    family = _socket.AF_INET6 if listen.is_ipv6 else _socket.AF_INET
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        address = (
            (listen.host, listen.port, 0, listen.scope_id) if listen.is_ipv6 else (listen.host, listen.port)
        )
        sock.bind(address)
        tune(sock, settings)
        sock.listen(settings.listen_backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """True if only this machine can connect to a bound TCP socket."""
    if sock.family == _socket.AF_UNIX:
        return False
    return WsListen(*sock.getsockname()[:2]).is_loopback


def tune(sock: _socket.socket, settings: Settings) -> None:
    """Set the options that send small messages at once, keep queues short, and detect a dead peer.

    They are set on the listening socket before it listens: on Linux accepted sockets inherit all of them,
    also those of clients that connect while the server is still starting.
    """
    tcp = _socket.IPPROTO_TCP
    # Else a second small message waits for the peer's delayed ACK: up to 44 ms at the reference server.
    sock.setsockopt(tcp, _socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, _socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, _socket.TCP_KEEPIDLE, settings.keepalive_idle_s)
    sock.setsockopt(tcp, _socket.TCP_KEEPINTVL, settings.keepalive_interval_s)
    sock.setsockopt(tcp, _socket.TCP_KEEPCNT, settings.keepalive_probes)
    sock.setsockopt(tcp, _socket.TCP_USER_TIMEOUT, round(settings.tcp_user_timeout_s * 1000))
    try:
        sock.setsockopt(tcp, _TCP_RTO_MAX_MS, _PROBE_GAP_MS)
    except OSError:
        pass  # a kernel before 6.15
