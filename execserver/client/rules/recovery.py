"""The rules of one session: how it begins, and how it goes on after its connection was lost.  No I/O.

After a loss a new connection is made at once and then every `resume_interval` (through a relay: after the
pauses of the wire contract, remote mode), for `resume_window` seconds.  A server that still counts the old
connection as attached (-32010) is asked again; any other refusal is final (wire contract, section 6).  Calls
in flight fail with `TransportClosed`, except those that may be sent again.

The clock and all waiting are the owner's: times come in as seconds of one monotonic clock, and pauses are
returned.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final, Protocol, TypeAlias, TypeVar

from execserver.client.errors import (
    ExecServerError,
    ProtocolViolation,
    ResumeFailed,
    SessionBusyError,
    TransportClosed,
    WaitTimeout,
    kept,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.event_log import Output
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.lifting import JsonText
from execserver.protocol.session import InitializeResponse, KeptSession

_T = TypeVar("_T", bound=TransportClosed)

_MAX_RESENDS: Final = 20  # a request that ends the connection each time is itself the cause
_MAX_AFTER_VIOLATIONS: Final = 2  # a server that breaks the rules with its answer most likely will again

Pauses: TypeAlias = Callable[[], Iterator[float]]
"""Begins a series of pauses, in seconds, between the attempts to recover."""


class SessionState(enum.Enum):
    """The state of a session."""

    NEW = "new"
    OPEN = "open"
    RESUMING = "resuming"
    ENDED = "ended"


class SessionListener(Protocol):
    """The callbacks of a session's owner."""

    def on_notification(self, method: str, params: JsonText) -> None:
        """Take a notification; must not block.  May raise `ProtocolViolation`, which ends the connection."""

    def on_output(self, process_id: str, output: Output) -> None:
        """Take a `process/output`, which is decoded already; must not block."""

    def on_lost(self, error: ExecServerError) -> None:
        """Note that a connection ended; what existed on it only is gone."""

    def on_resumed(self) -> None:
        """Note that the session goes on, on a new connection."""

    def on_ended(self, error: ExecServerError) -> None:
        """Note that the session will not go on."""


class SessionRules:
    """What one session knows and decides; with `can_resume` False the first loss is final."""

    def __init__(
        self, options: ExecServerClientConnectOptions, can_resume: bool, pauses: Pauses | None = None
    ) -> None:
        self.state = SessionState.NEW
        self.session_id = ""
        self.environment_info: EnvironmentInfo | None = None
        self.kept: KeptSession | None = None
        self.resumptions = 0
        self._options = options
        self._can_resume = can_resume
        self._pauses = pauses or (lambda: repeat(options.resume_interval))
        self._open_since = 0.0  # when the current connection was adopted
        self._end: TransportClosed | None = None

    @property
    def extensions(self) -> Extensions:
        """The extensions that the server announces; none if it announces nothing."""
        info = self.environment_info
        return info.execserver if info is not None and info.execserver is not None else Extensions()

    def introduction(self, session_id: str | None) -> dict[str, object]:
        """Return the params of `initialize`, for a new session or to resume `session_id`.

        What no contract has is left out where it is not used.
        """
        options = self._options
        plain: dict[str, object] = {"clientName": options.client_name, "resumeSessionId": session_id}
        if session_id is not None and self.session_id:  # resumed: it has its time and name from before
            return plain
        own = {
            "resumeSessionName": options.resume_session_name,
            "sessionName": options.session_name,
            "keepMs": options.keep_ms,
        }
        return plain | {name: value for name, value in own.items() if value is not None}

    def pause_while_busy(self, began: float, now: float) -> float | None:
        """Return how long to wait before the session of an earlier client is asked for again, None: no more.

        It stays attached until the server has noticed that client's end.  `began` is when opening began.
        """
        interval = self._options.resume_interval
        return interval if now + interval <= began + self._options.resume_window else None

    def adopt(self, found: InitializeResponse, now: float) -> None:
        """Note that a connection is initialized and in use."""
        self.session_id = found.session_id
        if isinstance(found.kept, KeptSession):
            self.kept = found.kept
        # Servers of the older contract send none.
        if isinstance(found.environment_info, EnvironmentInfo):
            self.environment_info = found.environment_info
        self._open_since = now
        self.state = SessionState.OPEN

    def lose(self, error: ExecServerError) -> TransportClosed | None:
        """Note that the connection in use was lost; return None if the session goes on, else its end."""
        if not self._can_resume:  # a server over stdio has ended with its pipes
            return _ended(TransportClosed, f"the connection ended: {error}", error)
        self.state = SessionState.RESUMING
        return None

    def recover(self, cause: ExecServerError, now: float) -> Recovery:
        """Begin to recover from a loss."""
        interval = self._options.resume_interval
        # Connections that are lost at once must not make this spin.
        first = interval if now - self._open_since < interval else 0.0
        return Recovery(cause, self._options.resume_window, first, self._pauses(), now)

    def may_send_again(self, losses: int, last: TransportClosed) -> bool:
        """Return whether a call that may be repeated is sent again after its n-th loss (from 1)."""
        is_violation = isinstance(last.__cause__, ProtocolViolation)
        return losses <= (_MAX_AFTER_VIOLATIONS if is_violation else _MAX_RESENDS)

    def finish(self, error: TransportClosed) -> None:
        """Note that the session has ended, and why."""
        self.state = SessionState.ENDED
        self._end = error

    def fresh_end(self) -> TransportClosed:
        """Return a new error that says why the session ended."""
        # One for each caller: an exception that several raise would mix their tracebacks.
        assert self._end is not None
        error = type(self._end)(str(self._end))
        error.__cause__ = self._end.__cause__
        return error


class Recovery:
    """The attempts after one loss; `first_pause` is to be waited before the first."""

    def __init__(
        self, cause: ExecServerError, window: float, first_pause: float, pauses: Iterator[float], now: float
    ) -> None:
        self.first_pause = first_pause
        self._cause = cause
        self._window = window
        self._pauses = pauses
        # The default window of 25 s ends before the 30 s for which a server keeps a detached session.
        self._deadline = now + window
        self._last: ExecServerError = cause
        self._refusal: ExecServerError | None = None

    def left(self, now: float) -> float:
        """Return the seconds that the next attempt may take, 0 or less if there is none.

        No attempt goes beyond the window: callers rely on it for their own wait.
        """
        return self._deadline - now

    def failed(self, error: ExecServerError, now: float) -> float | None:
        """Note that an attempt failed; return the pause before the next, None if the error is final."""
        if not isinstance(error, TransportClosed | SessionBusyError):
            self._refusal = kept(error)
            return None
        # The server is away, or has not noticed the loss of the old connection: both may pass.
        self._last = kept(error)
        return min(next(self._pauses), max(0.0, self._deadline - now))

    def end(self) -> ResumeFailed:
        """Return why there are no more attempts."""
        if self._refusal is not None:
            text = f"the session could not be resumed: {self._refusal}"
            return _ended(ResumeFailed, text, self._refusal)
        text = (
            f"the connection was lost ({self._cause}) and not resumed within {self._window:g} s: {self._last}"
        )
        return _ended(ResumeFailed, text, self._last)


def check_resumed(session_id: str | None, found: InitializeResponse) -> None:
    """Raise `ProtocolViolation` if a server that was asked for one session has made another.

    Every process would be missing in it.
    """
    if session_id is not None and found.session_id != session_id:
        raise ProtocolViolation(f"asked for session {session_id}, got {found.session_id}")


def lost_at_once(cause: ExecServerError) -> TransportClosed:
    """Return the error of a connection that was lost before it could be used."""
    error = TransportClosed(f"the new connection was lost again: {cause}")
    error.__cause__ = cause
    return error


def not_sent(method: str) -> WaitTimeout:
    """Return the error of a call whose time was over before there was a connection again."""
    return WaitTimeout(f"{method} could not be sent: the connection is being resumed")


def too_late(method: str, timeout: float) -> WaitTimeout:
    """Return the error of a call without an answer in time."""
    return WaitTimeout(f"{method} was not answered within {round(timeout, 3):g} s")


def _ended(kind: type[_T], text: str, cause: Exception) -> _T:
    # `kept`: the session holds this error, and a traceback in it would hold the session.
    error = kind(text)
    error.__cause__ = kept(cause)
    return error
