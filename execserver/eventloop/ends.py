"""One end of a connection that is passed on: a socket with the little that a proxy needs of one.

gevent's own socket takes as long to make and to close as all else that a short tunnel needs.  This one never
blocks.  Its `recv_now` and `send_now` are the system's calls; the other methods wait in the event loop, which
is told of the socket only then.  Several greenlets may use it, and whoever waits is woken by `close`.
"""

from __future__ import annotations

import _socket
import errno
import os
from typing import Any

from gevent import getcurrent, socket
from gevent.hub import get_hub

READABLE, WRITABLE = 1, 2
_INET, _TCP, _PLAIN_STREAM = int(socket.AF_INET), int(socket.IPPROTO_TCP), int(socket.SOCK_STREAM)
_STREAM = int(socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
# Long silence is normal on an event stream; a peer that is gone is noticed within two minutes.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))

Place = tuple[str, int] | tuple[str, int, int, int]  # numeric host, port and the rest


class End(_socket.socket):
    """A socket that does not block; the functions below make it."""

    _waiting: tuple[Any, ...] = ()  # watchers
    is_kept_alive = True  # or somebody else's business

    recv_now = _socket.socket.recv
    send_now = _socket.socket.send

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def recv(self, most: int, limit_s: float | None = None) -> bytes:
        """Return some bytes, none at the end; waits for them.  Raises OSError, also above the limit."""
        while True:
            try:
                return self.recv_now(most)
            except BlockingIOError:
                pass
            self.wait(READABLE, limit_s)

    def send(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Send some of the bytes, at least one, and return how many; waits for room.  Raises OSError."""
        while True:
            try:
                return self.send_now(data)
            except BlockingIOError:
                pass
            self.wait(WRITABLE)

    def sendall(self, data: bytes) -> None:  # type: ignore[override]
        """Send everything; waits for room.  Raises OSError."""
        sent = self.send(data)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(data):
                sent += self.send(view[sent:])

    def keep_alive(self) -> None:
        """Have the kernel look whether a silent peer is gone; for one that waits not by `wait`.

        Raises OSError.
        """
        if self.is_kept_alive:
            return
        self.is_kept_alive = True
        self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            self.setsockopt(_TCP, option, value)

    def wait(self, event: int, limit_s: float | None = None) -> None:
        """Wait until it can be read or written.  Raises TimeoutError above the limit."""
        self.keep_alive()
        hub = get_hub()
        watcher, timer = hub.loop.io(self.fileno(), event), None
        self._waiting = (*self._waiting, watcher)
        try:
            watcher.start(getcurrent().switch, watcher)
            if limit_s is not None:
                timer = hub.loop.timer(limit_s)
                timer.start(getcurrent().switch, timer)
            woken = None
            while woken is not watcher:
                woken = hub.switch()
                if timer is not None and woken is timer:
                    raise TimeoutError(errno.ETIMEDOUT, "timed out")
        finally:
            self._waiting = tuple([other for other in self._waiting if other is not watcher])
            watcher.close()
            if timer is not None:
                timer.close()

    def close(self) -> None:
        """Close it; who waits gets an OSError first."""
        if not self._waiting:
            super().close()
            return
        for watcher in self._waiting:
            socket.cancel_wait(watcher, OSError(errno.EBADF, "closed while somebody waits"))
        get_hub().loop.run_callback(super().close)


def accepted(listener: _socket.socket, family: int = _INET) -> tuple[End, tuple[str, int]]:
    """Accept a connection, which is over IPv4 if not said; return it, and whose it is.  Raises OSError."""
    fd, address = listener._accept()  # type: ignore[attr-defined]  # without what `accept` makes of it
    end = End(family, _PLAIN_STREAM, _TCP, fd)  # named: nothing is asked
    end.setblocking(False)
    return end, address


def connected(family: int, place: Place, limit_s: float | None = None) -> End:
    """Return a connection, which the caller owns.  Raises OSError, also above the limit.

    It is kept alive from the first time that somebody waits for it.
    """
    return complete(begun(family, place), place, limit_s)


def begun(family: int, place: Place) -> End:
    """Begin to connect, without waiting; `complete` says what has become of it.  Raises OSError."""
    end = End(family, _STREAM)
    end.is_kept_alive = False
    try:
        end.setsockopt(_TCP, socket.TCP_NODELAY, 1)
        end.connect_ex(place)  # asked again, the kernel tells how it went
    except BaseException:
        end.close()
        raise
    return end


def complete(end: End, place: Place, limit_s: float | None = None) -> End:
    """Return what has begun to connect to a place once it is there.  Else it is closed: raises OSError."""
    try:
        result = end.connect_ex(place)  # on loopback it is there already
        if result in (errno.EINPROGRESS, errno.EALREADY):
            end.wait(WRITABLE, limit_s)
            result = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result not in (0, errno.EISCONN):
            raise OSError(result, os.strerror(result))
    except BaseException:
        end.close()
        raise
    return end


def of_gevent(sock: socket.socket) -> End:
    """Return a connection that gevent's socket held."""
    end = End(int(sock.family), _PLAIN_STREAM, _TCP, sock.detach())
    end.setblocking(False)
    return end


def for_gevent(end: End) -> socket.socket:
    """Return what a library takes that wants gevent's socket; `end` is not to be used any more."""
    end.keep_alive()
    family, proto = end.family, end.proto
    return socket.socket(family, socket.SOCK_STREAM, proto, end.detach())
