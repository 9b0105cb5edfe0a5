"""The sockets on which a sandbox's own network reaches a proxy of this server.

A sandboxed process with a managed network sees nothing but these ports of its loopback.  What makes its
network listens there and passes the sockets here, before the command runs.  A socket stays in the network
that it was made in: no process outside, not even one of the same user, can connect to it, and nothing copies
the bytes.
"""

from __future__ import annotations

import os
import socket

from execserver.sandbox.proxy.routes import HTTP_PORT, MAX_ENDPOINTS, SOCKS_PORT


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
            return received(self._ours)
        except BlockingIOError:
            return {}

    def close(self) -> None:
        """Close both ends; what was taken stays open."""
        self._ours.close()
        self._theirs.close()


def received(channel: socket.socket) -> dict[int, socket.socket]:
    """Return the non-blocking listening sockets that a message on a channel brings, by port."""
    _, numbers, _, _ = socket.recv_fds(channel, 1, MAX_ENDPOINTS)
    listeners = {}
    for number in numbers:
        os.set_inheritable(number, False)  # no program that this server starts listens there, too
        listener = socket.socket(fileno=number)
        listener.setblocking(False)
        listeners[listener.getsockname()[1]] = listener
    for port in listeners.keys() - {HTTP_PORT, SOCKS_PORT}:
        # A variable of the client's own that names a port of its loopback; nothing answers there.
        listeners.pop(port).close()
    return listeners
