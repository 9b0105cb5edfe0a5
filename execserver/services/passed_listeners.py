"""The sockets on which a sandbox's own network reaches a proxy of this server.

A sandboxed process with a managed network sees nothing but these ports of its loopback.  What makes its
network listens there and passes the sockets here, before the command runs.  A socket stays in the network
that it was made in: no process outside, not even one of the same user, can connect to it, and nothing copies
the bytes.
"""

from __future__ import annotations

import socket

from execserver.sandbox.proxy.routes import MAX_ENDPOINTS

# Fixed, since the network is new and so every port in it free: the environment that names them is complete
# before the network exists.  Above what Linux gives to connections by itself (60999).
HTTP_PORT = 61001
SOCKS_PORT = 61002


class PassedListeners:
    """A socket pair for one start; both ends are closed by `close`."""

    def __init__(self) -> None:
        """Make the pair.  Raises OSError."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)

    @property
    def fd(self) -> int:
        """The end for the sandbox, for `SpawnSpec.listeners_fd`."""
        return self._theirs.fileno()

    def take(self) -> dict[int, socket.socket]:
        """Return the non-blocking listening sockets by port, once the start has succeeded.

        They are the caller's.  Empty if nothing listens: what was started has no network of its own.
        """
        try:
            _, numbers, _, _ = socket.recv_fds(self._ours, 1, MAX_ENDPOINTS)
        except BlockingIOError:
            return {}
        listeners = {}
        for number in numbers:
            listener = socket.socket(fileno=number)
            listener.setblocking(False)
            listeners[listener.getsockname()[1]] = listener
        for port in listeners.keys() - {HTTP_PORT, SOCKS_PORT}:
            # A variable of the client's own that names a port of its loopback; nothing answers there.
            listeners.pop(port).close()
        return listeners

    def close(self) -> None:
        """Close both ends; what was taken stays open."""
        self._ours.close()
        self._theirs.close()
