"""A server, as far as it can be handed over: what it holds back, ends, and packs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from execserver.handover.carrier import Outgoing
from execserver.handover.records import STATE_VERSION, Handover
from execserver.own_start import own_start
from execserver.service_manager import READY
from execserver.services.sessions import handover as session_handover
from execserver.version import __version__

if TYPE_CHECKING:
    import socket

    from execserver.handlers.context import Services
    from execserver.service_manager import ServiceManager
    from execserver.services.launch.spawner import Spawner
    from execserver.transports.front import Front

_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """What of a server is handed over, and who is told."""

    front: Front
    spawner: Spawner
    services: Services
    manager: ServiceManager
    soft_nofile: int
    metrics: socket.socket | None


class ServerState:
    """An `Upgradable`."""

    kind: Final = "server"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def going(self, shown: str, who: str) -> None:
        """Tell the service manager and the audit log that another program takes over."""
        _log.info("upgrading to %s, as %s has asked", shown, who)
        self._parts.manager.reloading()
        audit = self._parts.services.audit
        if audit is not None:
            audit.record("upgrade", to=shown, by=who)
            audit.sync_now()

    def stayed(self, shown: str, who: str, why: str) -> None:
        """Tell everybody that it does not."""
        _log.error("not upgraded to %s, as %s has asked: %s", shown, who, why)
        self._parts.manager.tell(READY)  # a reload that was announced, or asked for, is over
        audit = self._parts.services.audit
        if audit is not None:
            audit.record("upgrade-refused", to=shown, by=who, why=why)

    @property
    def retained_bytes(self) -> int:
        """See `Upgradable`."""
        sessions = self._parts.services.sessions
        return sum(process.state.log.size for session in sessions for _, process in session.processes)

    def hold(self) -> None:
        """See `Upgradable`."""
        self._parts.front.open.hold()

    def release(self) -> None:
        """See `Upgradable`."""
        self._parts.front.open.release()

    @property
    def unfinished(self) -> bool:
        """See `Upgradable`."""
        self._parts.front.open.finish_gone()
        return self._parts.front.open.is_busy

    @property
    def unsettled(self) -> str | None:
        """See `Upgradable`."""
        return self._parts.spawner.unsettled

    def give_up_rest(self, reason: str) -> None:
        """See `Upgradable`."""
        self._parts.front.open.give_up_rest(reason)

    @property
    def is_leaving(self) -> bool:
        """See `Upgradable`."""
        return self._parts.front.open.is_leaving

    def pack(self, out: Outgoing, program: int, asker: int | None, began_at: float, signals: int) -> int:
        """See `Upgradable`."""
        parts = self._parts
        state = Handover(
            version=STATE_VERSION,
            from_version=__version__,
            began_at=began_at,
            front=parts.front.pack(out),
            spawner=parts.spawner.pack(out, own_start().lock),
            sessions=session_handover.pack(parts.services.sessions, out),
            metrics=None if parts.metrics is None else out.keep(parts.metrics.fileno()),
            asker=None if asker is None else out.keep(asker),
            signals=signals,
            program=program,
        )
        return out.sealed(state, parts.soft_nofile)
