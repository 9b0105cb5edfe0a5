"""Serves a relay that another program can take the place of, or in the place of the one before."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent import signal_handler

from execserver.leaving import failure
from execserver.relay.app import Relay, RelayConfig
from execserver.relay.state import MemoryState
from execserver.settings import Settings
from execserver.upgrading.door import UpgradeDoor
from execserver.version import __version__

if TYPE_CHECKING:
    from execserver.eventloop.signals import EndSignals
    from execserver.handover.carrier import Incoming
    from execserver.handover.relay_records import RelayHandover
    from execserver.upgrading.upgrade import Upgrade

_log = logging.getLogger(__name__)


def serve(config: RelayConfig, sock: socket.socket, announce: Callable[[], None], takes_hup: bool) -> int:
    """Serve until a signal; call `announce` once requests are answered.  Raises what `Relay` raises."""
    relay = Relay(config, sock, Settings.from_environment(os.environ))
    return relay.run(announce, _Successions(relay, takes_hup))


def go_on(config: RelayConfig, takes_hup: bool) -> int:
    """Serve in the place of the program that has executed this one, with all that it was doing.

    Raises what `Relay` raises, and Leave for a state that is none.
    """
    from execserver.handover.carrier import HandoverError, received

    try:
        incoming = received(os.environ)
        assert incoming is not None  # the variable is there
        state = incoming.relay_state()
    except HandoverError as error:
        raise failure(f"this relay cannot go on: {error}") from None
    sock = _socket(incoming, state.listener)
    relay = Relay(config, sock, Settings.from_environment(os.environ))
    parts = relay.parts
    if state.registry is not None and isinstance(parts.state, MemoryState):
        parts.state.restore(state.registry)
    parts.listener.restore(state.connections, incoming)
    parts.rendezvous.restore(state.rendezvous, incoming)
    parts.rendezvous.end_revoked()  # the tokens were read just now, so no later look finds them changed
    return relay.run(lambda: None, _Successions(relay, takes_hup, _TakenOver(incoming, state)))


class _TakenOver:
    """What came along with the exec, and what is told about it."""

    def __init__(self, incoming: Incoming, state: RelayHandover) -> None:
        self._incoming = incoming
        self._state = state

    def finish(self, relay: Relay, signals: EndSignals) -> None:
        """Take signals again, tell who asked for the upgrade, and close what nobody needs any more."""
        from execserver.upgrading.upgrade import BLOCKED

        state, incoming = self._state, self._incoming
        signals.take_over(incoming.take(state.signals))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
        executors, harnesses, streams = relay.parts.rendezvous.counts()
        facts = {
            "from": state.from_version,
            "to": __version__,
            "streams": streams,
            "connections": executors + harnesses,
            "pauseMs": round((time.monotonic() - state.began_at) * 1000),
        }
        _log.info("upgraded from %(from)s to %(to)s in %(pauseMs)d ms: %(connections)d websockets", facts)
        self._answer(facts)
        incoming.close_rest()

    def _answer(self, facts: dict[str, object]) -> None:
        if self._state.asker is None:
            return
        import msgspec

        with _socket(self._incoming, self._state.asker) as asker:
            try:
                asker.send(msgspec.json.encode({"upgraded": facts}), socket.MSG_NOSIGNAL)
            except OSError:
                pass  # it has not waited


class _Successions:
    """See `relay.app.Successions`."""

    def __init__(self, relay: Relay, takes_hup: bool, taken_over: _TakenOver | None = None) -> None:
        self.takes_hup = takes_hup
        self._relay = relay
        self._taken_over = taken_over
        self._door: UpgradeDoor | None = None
        self._upgrade: Upgrade | None = None

    def begin(self, signals: EndSignals) -> None:
        """See `relay.app.Successions`."""

        def made() -> Upgrade:
            return self._made(signals)

        if self.takes_hup:
            signal_handler(signal.SIGHUP, lambda: made().run_own("SIGHUP"))
        try:
            self._door = UpgradeDoor(made)
        except OSError as error:
            _log.warning("execserver upgrade cannot reach this relay: %s", error)
        if self._taken_over is not None:
            self._taken_over.finish(self._relay, signals)
            self._taken_over = None

    def close(self) -> None:
        """See `relay.app.Successions`."""
        if self._door is not None:
            self._door.close()

    def _made(self, signals: EndSignals) -> Upgrade:
        """Return the way to another program, loaded when somebody asks for it."""
        from execserver.handover.relay_records import RELAY_STATE_VERSION
        from execserver.upgrading.relay_state import RelayState
        from execserver.upgrading.upgrade import Upgrade

        if self._upgrade is None:
            relay = self._relay
            state = RelayState(relay.parts)
            self._upgrade = Upgrade(state, signals, lambda: relay.is_ending, RELAY_STATE_VERSION)
        return self._upgrade


def _socket(incoming: Incoming, fd: int) -> socket.socket:
    sock = socket.socket(fileno=incoming.take(fd))
    sock.setblocking(False)
    return sock
