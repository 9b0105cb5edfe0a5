"""A relay, as far as it can be handed over: what it holds back, ends, and packs."""

from __future__ import annotations

import logging
import resource
from typing import Final

from execserver.handover.carrier import Outgoing
from execserver.handover.relay_records import RELAY_STATE_VERSION, RelayHandover
from execserver.relay.app import Parts
from execserver.relay.state import MemoryState
from execserver.version import __version__

_log = logging.getLogger(__name__)

_TEXT = "this relay is being upgraded: connect once more"


class RelayState:
    """An `Upgradable`."""

    kind: Final = "relay"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def going(self, shown: str, who: str) -> None:
        """See `Upgradable`."""
        _log.info("upgrading to %s, as %s has asked", shown, who)

    def stayed(self, shown: str, who: str, why: str) -> None:
        """See `Upgradable`."""
        _log.error("not upgraded to %s, as %s has asked: %s", shown, who, why)

    @property
    def retained_bytes(self) -> int:
        """See `Upgradable`."""
        return 0

    def hold(self) -> None:
        """See `Upgradable`; what is upgraded already goes on until the exec."""
        self._parts.listener.hold()

    def release(self) -> None:
        """See `Upgradable`."""
        self._parts.listener.release()

    @property
    def unfinished(self) -> bool:
        """See `Upgradable`."""
        return self._parts.listener.is_busy

    @property
    def unsettled(self) -> str | None:
        """See `Upgradable`."""
        return None

    def give_up_rest(self, reason: str) -> None:
        """End what cannot go along: calls that wait, and all that is behind TLS."""
        self._parts.listener.give_up_rest()
        self._parts.rendezvous.end_tls(_TEXT)

    @property
    def is_leaving(self) -> bool:
        """See `Upgradable`."""
        return self._parts.listener.is_leaving or self._parts.rendezvous.has_tls

    def pack(self, out: Outgoing, program: int, asker: int | None, began_at: float, signals: int) -> int:
        """See `Upgradable`."""
        parts = self._parts
        listener, connections = parts.listener.pack(out)
        state = RelayHandover(
            version=RELAY_STATE_VERSION,
            from_version=__version__,
            began_at=began_at,
            listener=listener,
            connections=connections,
            rendezvous=parts.rendezvous.pack(out),
            registry=parts.state.pack() if isinstance(parts.state, MemoryState) else None,
            asker=None if asker is None else out.keep(asker),
            signals=signals,
            program=program,
        )
        return out.sealed(state, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
