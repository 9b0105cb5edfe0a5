"""The new program's side of an upgrade: all that came along finds its owner, in one turn of the loop."""

from __future__ import annotations

import logging
import signal
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from execserver.handover.carrier import Incoming
from execserver.handover.records import Handover, PackedListener, PackedRemote
from execserver.services.sessions import handover as session_handover
from execserver.unix_socket import BoundFile
from execserver.upgrading.upgrade import BLOCKED
from execserver.version import __version__

if TYPE_CHECKING:
    from execserver.access.identity import Authenticator
    from execserver.eventloop.signals import EndSignals
    from execserver.handlers.context import Services
    from execserver.services.launch.spawner import Spawner
    from execserver.transports.listener import WebSocketListener

_log = logging.getLogger(__name__)


class TakenOver:
    """What came along with the exec, and what it has to be told to whoever asked for it."""

    def __init__(self, incoming: Incoming, state: Handover) -> None:
        self.incoming = incoming
        self.state = state

    def take(
        self,
        spawner: Spawner,
        services: Services,
        listener: WebSocketListener,
        authenticator: Authenticator | None,
    ) -> None:
        """Go on with everything.  Nothing else may run before this returns."""
        state, incoming, front = self.state, self.incoming, self._listener
        spawner.adopt(state.spawner, incoming)
        session_handover.unpack(services.sessions, state.sessions, incoming, authenticator)
        handle = listener.unpack(front, incoming, services.sessions.find, authenticator)
        session_handover.go_on(services.sessions, state.sessions, incoming, services)
        spawner.kill_unclaimed()
        handle()

    def take_sessions(self, spawner: Spawner, services: Services) -> None:
        """Go on with everything but connections: the clients resume their sessions.

        Nothing else may run before this returns.
        """
        state, incoming = self.state, self.incoming
        spawner.adopt(state.spawner, incoming)
        session_handover.unpack(services.sessions, state.sessions, incoming, None)
        session_handover.go_on(services.sessions, state.sessions, incoming, services)
        session_handover.detach_all(services.sessions)
        spawner.kill_unclaimed()

    @property
    def remote(self) -> PackedRemote:
        """What remote mode goes on from."""
        assert isinstance(self.state.front, PackedRemote)  # the arguments are the same
        return self.state.front

    @property
    def _listener(self) -> PackedListener:
        assert isinstance(self.state.front, PackedListener)
        return self.state.front

    @property
    def file(self) -> BoundFile | None:
        """The file of the listening socket, if it has one."""
        found = self._listener.file
        return None if found is None else BoundFile(*found)

    def listening_socket(self) -> socket.socket:
        """Return the socket to go on listening on."""
        return _socket(self.incoming.take(self._listener.fd))

    def metrics_socket(self) -> socket.socket | None:
        """Return the socket on which metrics are served, if they are."""
        return None if self.state.metrics is None else _socket(self.incoming.take(self.state.metrics))

    def finish(self, signals: EndSignals) -> None:
        """Take signals again, tell who asked for the upgrade, and let go of what nobody needs any more."""
        signals.take_over(self.incoming.take(self.state.signals))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        pause_ms = round((time.monotonic() - self.state.began_at) * 1000)
        processes = sum(
            each.state.exit_code is None for one in self.state.sessions.sessions for each in one.processes
        )
        facts = {
            "from": self.state.from_version,
            "to": __version__,
            "sessions": len(self.state.sessions.sessions),
            "processes": processes,
            "pauseMs": pause_ms,
        }
        if isinstance(self.state.front, PackedListener):
            facts["connections"] = len(self.state.front.connections)
        _log.info("upgraded from %(from)s to %(to)s in %(pauseMs)d ms: %(processes)d processes", facts)
        self._answer({"upgraded": facts})
        self.incoming.close_rest()
        del self.state

    def _answer(self, answer: dict[str, object]) -> None:
        if self.state.asker is None:
            return
        with socket.socket(fileno=self.incoming.take(self.state.asker)) as asker:
            try:
                asker.send(msgspec.json.encode(answer), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # it has not waited


def _socket(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock
