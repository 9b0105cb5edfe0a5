"""Puts a program in the place of a running server: asks it, lets what is worked on come to an end, and execs.

The process stays, and with it everything that runs: the new program is a child's parent, a socket's owner and
a pipe's reader as the old one was.  Up to the exec nothing is given away, so that a server which cannot go
that way goes on as it was.

While requests are worked on the server waits for them, at most `_REQUESTS_S`; what is not done by then cannot
be handed over and is told so.  Everything behind that happens in one turn of the event loop: nothing else
runs, so what is packed is the state.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import Final, Protocol

import gevent

from execserver.eventloop.signals import EndSignals
from execserver.handover.carrier import Outgoing
from execserver.handover.program import BadProgram, Program
from execserver.handover.records import STATE_VERSION
from execserver.own_start import own_start
from execserver.runtime_paths import STATE_VARIABLE
from execserver.upgrading.checking import check, without_credentials
from execserver.upgrading.room import outgoing_for

_REQUESTS_S: Final = 1.0
_QUIET_S: Final = 1.0
_LOOK_S: Final = 0.002
_SPARE: Final = 8  # descriptors that the new program needs beyond what goes along, and what is closed for it
_CLOSING_S: Final = 0.5  # for the Close frames of connections that cannot go along
BLOCKED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REASON: Final = "the server was upgraded before this was done; what had been done until then stays"


class NotUpgraded(Exception):
    """The server goes on as it was; the text says why."""


class Upgradable(Protocol):
    """A server or a relay, as far as it can be handed over."""

    @property
    def kind(self) -> str:
        """What it is called in the texts of refusals."""

    def going(self, shown: str, who: str) -> None:
        """Note that a program has agreed to take over, and who has asked for that."""

    def stayed(self, shown: str, who: str, why: str) -> None:
        """Note that it does not."""

    @property
    def retained_bytes(self) -> int:
        """About how many bytes go along beside the records."""

    def hold(self) -> None:
        """Begin with no further request."""

    def release(self) -> None:
        """Go on as before."""

    @property
    def unfinished(self) -> bool:
        """True while something is done that cannot be handed over."""

    @property
    def unsettled(self) -> str | None:
        """Why nothing can be handed over at all now; None if it can."""

    def give_up_rest(self, reason: str) -> None:
        """End what is unfinished, and say so to those it concerns."""

    @property
    def is_leaving(self) -> bool:
        """True while some of those are still to be told."""

    def pack(self, out: Outgoing, program: int, asker: int | None, began_at: float, signals: int) -> int:
        """Return a descriptor of everything, as `Outgoing.sealed` makes it.  Raises OSError."""


class Upgrade:
    """One server's way to the next program; one attempt at a time."""

    def __init__(
        self,
        server: Upgradable,
        signals: EndSignals,
        is_ending: Callable[[], bool],
        state_version: int = STATE_VERSION,
        why_not: str = "",
    ) -> None:
        """`why_not` is a reason for which this server can never be upgraded."""
        self._why_not = why_not
        self._server = server
        self._state_version = state_version
        self._signals = signals
        self._is_ending = is_ending
        self._is_under_way = False
        self._quiet_until = -math.inf
        self._untold = 0

    @property
    def kind(self) -> str:
        """See `Upgradable`."""
        return self._server.kind

    def run(self, program: Program, who: str, asker: int | None = None) -> None:
        """Become the program.  Returns only by raising NotUpgraded; the program is closed then.

        `asker` is a socket that the new program answers to.
        """
        if self._is_under_way:
            program.close()
            raise NotUpgraded("an upgrade is under way")
        if self._why_not:
            program.close()
            self.refused(program.shown, who, self._why_not)
            raise NotUpgraded(self._why_not)
        self._is_under_way = True
        try:
            check(program, self._state_version)
            self._server.going(program.shown, who)
            self._exchange(program, asker)
        except (BadProgram, NotUpgraded, OSError, ImportError) as error:
            why = str(error)
            if isinstance(error, OSError | ImportError):  # what packs is loaded only now
                why = f"{program.shown} cannot be executed: {getattr(error, 'strerror', None) or error}"
            self._server.stayed(program.shown, who, why)
            raise NotUpgraded(why) from None
        finally:
            self._is_under_way = False
            program.close()

    def refused(self, shown: str, who: str, why: str) -> None:
        """Note that somebody has asked for what cannot be.

        Anybody can: whoever asks on and on must not drive all else out of the logs, so not each time is told.
        """
        now = time.monotonic()
        if now < self._quiet_until:
            self._untold += 1
            return
        more, self._untold = self._untold, 0
        self._quiet_until = now + _QUIET_S
        self._server.stayed(shown, who, f"{why} (and {more} more since the last one told)" if more else why)

    def run_own(self, who: str) -> None:
        """Become what the server's own file is now; what cannot be is in the log."""
        start = own_start()
        try:
            self.run(Program.own(start), who)
        except BadProgram as error:
            self._server.stayed(start.file, who, str(error))
        except NotUpgraded:
            return  # it has been noted

    def _exchange(self, program: Program, asker: int | None) -> None:
        out = outgoing_for(self._server.retained_bytes)
        began_at = time.monotonic()
        self._server.hold()
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        try:
            self._wait_while(lambda: self._is_occupied, _REQUESTS_S)
            if (why := self._server.unsettled) is not None:
                raise NotUpgraded(f"{why}; try again")
            self._server.give_up_rest(REASON)
            self._wait_while(lambda: self._server.is_leaving, _CLOSING_S)
            gevent.sleep(_LOOK_S)  # the loop takes the signals that came before they were blocked
            if self._is_ending():
                raise NotUpgraded(f"the {self.kind} is being ended")
            self._execute(program, asker, began_at, out)
        finally:
            out.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            self._server.release()

    @property
    def _is_occupied(self) -> bool:
        return self._server.unfinished or self._server.unsettled is not None

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while condition() and time.monotonic() < until:
            gevent.sleep(_LOOK_S)

    def _execute(self, program: Program, asker: int | None, began_at: float, out: Outgoing) -> None:
        """Pack and exec in this turn of the loop; raise BadProgram or OSError if that fails."""
        _check_room(program.fd)
        out.keep(program.fd)
        reader, writer = self._signals.suspend()
        state = -1
        try:
            state = self._server.pack(out, program.fd, asker, began_at, out.keep(reader))
            program.check_again()
            out.set_inheritable(True)
            os.set_inheritable(state, True)
            program.execute({**without_credentials(), STATE_VARIABLE: str(state)})
        finally:
            out.set_inheritable(False)
            if state >= 0:
                os.close(state)
            self._signals.resume(reader, writer)


def _check_room(fd: int) -> None:
    """Raise OSError where the new program would run out of descriptors: then nobody is left to go back to."""
    taken: list[int] = []
    try:
        while len(taken) < _SPARE:
            taken.append(os.dup(fd))
    finally:
        for each in taken:
            os.close(each)
