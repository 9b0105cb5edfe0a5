"""Listening here for a forward: each connection is handed over in the event loop, while there is a place.

Beyond `MOST` open connections, of all ports together, further ones wait in the kernel.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from execserver.box.ports.forwards import Place
from execserver.eventloop.acceptor import Acceptor
from execserver.eventloop.ends import End, accepted
from execserver.eventloop.locks import BoundedSemaphore

MOST: Final = 256
_BACKLOG: Final = 256

_log = logging.getLogger(__name__)


class Doors:
    """The ports that are listened on, and the places for connections."""

    def __init__(self) -> None:
        self._places = BoundedSemaphore(MOST)
        self._acceptors: list[Acceptor] = []

    def listen(self, at: Place, take: Callable[[End], object]) -> Place:
        """Listen, and return the address; each connection that `take` gets has a place.  Raises OSError."""
        sock = _listening(at)

        def taken(end: End, peer: object) -> None:
            self.take_place()  # there is one, else this would not be called
            take(end)

        acceptor = Acceptor(sock, taken, lambda: None, _log, partial(accepted, sock, sock.family))
        self._acceptors.append(acceptor)
        if not self._places.locked():
            acceptor.start()
        host, port, *_ = sock.getsockname()
        return Place(str(host), int(port))

    def take_place(self) -> None:
        """Take a place, for whoever does not come by a port of these; wait for one."""
        self._places.acquire()
        if self._places.locked():
            for each in self._acceptors:
                each.pause()

    def give_back(self) -> None:
        """Free a place."""
        was_full = self._places.locked()
        self._places.release()
        if was_full:
            for each in self._acceptors:
                each.start()

    def close(self) -> None:
        """Listen no longer."""
        acceptors, self._acceptors = self._acceptors, []  # none is started again when a place is given back
        for each in acceptors:
            each.close()


def _listening(at: Place) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in at.host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is accepted has it from here
        sock.bind(at)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
