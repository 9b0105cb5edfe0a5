"""Where `execserver upgrade` asks a running server: an abstract socket with the server's pid in its name.

It needs no file, is gone with the server, and is found in /proc/net/unix.  A name proves nothing, so both
ends look at what the kernel says of the other one.  What answers is loaded with the first request.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import gevent
import msgspec
from gevent.hub import get_hub

from execserver.eventloop.acceptor import Acceptor
from execserver.eventloop.deadline import at_most
from execserver.handover.asking import Asker
from execserver.runtime_paths import UPGRADE_SOCKET

if TYPE_CHECKING:
    from execserver.upgrading.upgrade import Upgrade

_log = logging.getLogger(__name__)

_WAITING: Final = 4
_READ: Final = 1
_ASK_S: Final = 5.0
_SERVED: Final = 4  # of a kind at a time; a further peer is dropped


class UpgradeDoor:
    """Listens for requests, and owns that socket."""

    def __init__(self, upgrade: Callable[[], Upgrade]) -> None:
        """Raises OSError if the name is taken."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.bind(UPGRADE_SOCKET % os.getpid())
            sock.listen(_WAITING)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        self._upgrade = upgrade
        self._served = {True: 0, False: 0}  # of those who may ask, and of those who may not
        self._acceptor = Acceptor(sock, self._accepted, lambda: None, _log)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening."""
        self._acceptor.close()

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        # Each kind has its places: who may not ask must not keep out who may, by saying nothing.
        may_ask = Asker(sock).objection() is None
        if self._served[may_ask] >= _SERVED:
            sock.close()
            return
        self._served[may_ask] += 1
        gevent.spawn(self._serve, sock, may_ask)

    def _serve(self, sock: socket.socket, may_ask: bool) -> None:
        try:
            with sock:
                self._answer(sock)
        finally:
            self._served[may_ask] -= 1

    def _answer(self, sock: socket.socket) -> None:
        try:
            from execserver.upgrading.answering import answer

            upgrade = self._upgrade()
        except (ImportError, OSError) as error:  # for want of descriptors, as a rule
            _log.error("an upgrade that was asked for cannot be begun: %s", error)
            _refuse(sock, f"it cannot be begun: {error}")
        else:
            answer(sock, upgrade)


def _refuse(sock: socket.socket, why: str) -> None:
    """Take a request and refuse it, with nothing but what is loaded."""
    sock.setblocking(False)
    watcher = get_hub().loop.io(sock.fileno(), _READ)
    try:
        with at_most(_ASK_S):
            get_hub().wait(watcher)
        sock.recv(1)  # a peer whose message is not read loses the answer; the file in it is closed
        sock.send(msgspec.json.encode({"refused": why}))
    except OSError:
        pass  # it has not waited
    finally:
        watcher.close()
