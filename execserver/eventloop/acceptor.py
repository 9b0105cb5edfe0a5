"""Accepting connections on a listening socket, also where descriptors run short."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from gevent.hub import get_hub

_READY_READ = 1
_RETRY_S = 0.1  # after accept failed for want of descriptors

# Takes a connection over at once, in the event loop; connection and address are as `accept` returns them.
Accepted = Callable[[Any, Any], object]
Accept = Callable[[], tuple[Any, Any]]


class Acceptor:
    """Accepts on a listening, non-blocking socket, which it owns.

    Where no connection can be accepted, the failure goes to `log`, `make_room` is called, and after a moment
    there is another try: a loop that tries all the time would starve everybody else.
    """

    def __init__(
        self,
        sock: socket.socket,
        accepted: Accepted,
        make_room: Callable[[], None],
        log: logging.Logger,
        accept: Accept | None = None,
    ) -> None:
        """`accept` takes the place of the socket's own."""
        self._sock = sock
        self._take = accept or sock.accept
        self._accepted = accepted
        self._make_room = make_room
        self._log = log
        loop = get_hub().loop
        self._accepting = loop.io(sock.fileno(), _READY_READ)
        self._retry = loop.timer(_RETRY_S, _RETRY_S)  # a timer that does not repeat forgets its delay

    @property
    def fd(self) -> int:
        """The descriptor of the socket."""
        return self._sock.fileno()

    def start(self) -> None:
        """Begin to accept."""
        self._retry.stop()
        self._accepting.start(self._accept)

    def pause(self) -> None:
        """Let further connections wait in the kernel's queue until `start`."""
        self._accepting.stop()
        self._retry.stop()

    def close(self) -> None:
        """Stop accepting, and close the listening socket."""
        self._accepting.stop()
        self._retry.stop()
        self._sock.close()

    def _accept(self) -> None:
        """Accept one connection; the loop calls again while more are waiting."""
        try:
            sock, address = self._take()
        except (BlockingIOError, ConnectionError):
            return  # it left before it was accepted
        except OSError as error:
            self._log.warning("cannot accept connections for a moment: %s", error)
            self._accepting.stop()
            self._make_room()
            self._retry.again(self.start)
            return
        self._accepted(sock, address)
