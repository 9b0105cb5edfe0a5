"""Connections on which nothing has arrived yet: the event loop tells when something does, or it is too late.

A greenlet for each would cost more than all that is done for most of them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

from gevent.hub import get_hub

from execserver.eventloop.delay_queue import DelayQueue

_READY_READ = 1


class SilentPeers:
    """Calls back once for each socket, in the event loop, and owns none of them.

    That is `came`, when something or the peer's end has arrived, or after `limit_s` seconds `dropped`.
    """

    def __init__(self, limit_s: float, dropped: Callable[[socket.socket], None]) -> None:
        self._dropped = dropped
        self._io = get_hub().loop.io
        self._late: DelayQueue[_Wait] = DelayQueue(limit_s, self._drop)

    def wait(self, sock: socket.socket, came: Callable[[], None]) -> None:
        """Begin to wait for what a peer sends; its socket must stay open until the call."""
        wait = _Wait(sock, self._io(sock.fileno(), _READY_READ))
        wait.watcher.start(self._came, wait, came)
        self._late.add(wait)

    def __iter__(self) -> Iterator[socket.socket]:
        """Yield the sockets."""
        return (wait.sock for wait, _ in self._late)

    def _came(self, wait: _Wait, came: Callable[[], None]) -> None:
        self._late.discard(wait)
        wait.watcher.stop()
        came()

    def _drop(self, wait: _Wait) -> None:
        wait.watcher.stop()
        self._dropped(wait.sock)


class _Wait:
    __slots__ = ("sock", "watcher")

    def __init__(self, sock: socket.socket, watcher: Any) -> None:
        self.sock = sock
        self.watcher = watcher
