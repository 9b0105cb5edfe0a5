"""The next server's side of a kill: all that was written down finds its owner, in one turn of the loop."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from execserver.services.surviving.sessions import SurvivingSessions
from execserver.upgrading.resuming import TakenOver

if TYPE_CHECKING:
    from execserver.access.identity import Authenticator
    from execserver.eventloop.signals import EndSignals
    from execserver.handlers.context import Services
    from execserver.handover.carrier import Incoming
    from execserver.handover.records import Handover
    from execserver.services.launch.spawner import Spawner
    from execserver.transports.listener import WebSocketListener

_log = logging.getLogger(__name__)


class AfterCrash(TakenOver):
    """What a server that was killed has left; its connections have ended with it."""

    def __init__(self, incoming: Incoming, state: Handover, cause: str) -> None:
        super().__init__(incoming, state)
        self._cause = cause

    def take(
        self,
        spawner: Spawner,
        services: Services,
        listener: WebSocketListener,
        authenticator: Authenticator | None,
    ) -> None:
        """See `TakenOver`.  Sessions are noted here: their clients may not come before the next kill."""
        super().take(spawner, services, listener, authenticator)
        assert isinstance(services.sessions, SurvivingSessions)
        for session in services.sessions:
            services.sessions.note(session)

    def finish(self, signals: EndSignals) -> None:
        """Say what has happened, and close what nobody needs any more."""
        processes = sum(len(one.processes) for one in self.state.sessions.sessions)
        pause_ms = round((time.monotonic() - self.state.began_at) * 1000)
        _log.error(
            "the server was ended by %s; this one goes on after %d ms with %d sessions, %d processes",
            *(self._cause, pause_ms, len(self.state.sessions.sessions), processes),
        )
        self.incoming.close_rest()
        del self.state
