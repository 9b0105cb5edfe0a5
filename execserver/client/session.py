"""One session with a server: initialize, calls, and resuming it after the connection was lost.

After a loss a new connection is made at once and then every `resume_interval` (through a relay: after the
pauses of the wire contract, remote mode), for `resume_window` seconds.  A server that still counts the old
connection as attached (-32010) is asked again; any other refusal is final (wire contract, section 6).  Calls
made meanwhile wait.  Calls in flight fail with `TransportClosed`, except those made with `resend`, which are
sent again on the new connection.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final, Protocol, TypeAlias, TypeVar

import gevent
import msgspec
from gevent.event import Event

from execserver.client import wire
from execserver.client.connection import Connection
from execserver.client.errors import (
    ConnectTimeout,
    ExecServerError,
    ProtocolViolation,
    RegistryRefused,
    ResumeFailed,
    SessionBusyError,
    TransportClosed,
    WaitTimeout,
    kept,
)
from execserver.client.event_log import Output
from execserver.client.flow import Gate
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.transport import Transport
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.method import Method
from execserver.protocol.process_methods import INITIALIZE, INITIALIZED
from execserver.protocol.record import Record
from execserver.protocol.session import (
    InitializedNotification,
    InitializeResponse,
    KeptSession,
)

_MAX_RESENDS: Final = 20  # a request that ends the connection each time is itself the cause

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)

OpenTransport: TypeAlias = Callable[[float], Transport]
"""Makes a new connection within so many seconds.  Raises `ConnectFailed` or `ConnectTimeout`."""

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

    def on_notification(self, method: str, params: msgspec.Raw) -> None:
        """Take a notification; must not block.  May raise `ProtocolViolation`, which ends the connection."""

    def on_output(self, process_id: str, output: Output) -> None:
        """Take a `process/output`, which is decoded already; must not block."""

    def on_lost(self, error: ExecServerError) -> None:
        """Note that a connection ended; what existed on it only is gone."""

    def on_resumed(self) -> None:
        """Note that the session goes on, on a new connection."""

    def on_ended(self, error: ExecServerError) -> None:
        """Note that the session will not go on."""


class Session:
    """Owns the current connection; `open_transport` makes the next one.

    With `can_resume` False the first loss is final.
    """

    def __init__(
        self,
        open_transport: OpenTransport,
        options: ExecServerClientConnectOptions,
        gate: Gate,
        listener: SessionListener,
        can_resume: bool,
        pauses: Pauses | None = None,
    ) -> None:
        self.state = SessionState.NEW
        self.session_id = ""
        self.environment_info: EnvironmentInfo | None = None
        self.kept: KeptSession | None = None
        self.resumptions = 0
        self._open_transport = open_transport
        self._options = options
        self._gate = gate
        self._listener = listener
        self._can_resume = can_resume
        self._pauses = pauses or (lambda: repeat(options.resume_interval))
        self._connection: Connection | None = None
        self._settled = Event()  # set while the session is open or ended
        self._open_since = 0.0  # when the current connection was adopted
        self._end: TransportClosed | None = None
        self._recovery: gevent.Greenlet[[ExecServerError], None] | None = None

    @property
    def extensions(self) -> Extensions:
        """The extensions that the server announces; none if it announces nothing."""
        info = self.environment_info
        return info.execserver if info is not None and info.execserver is not None else Extensions()

    def open(self) -> None:
        """Connect and initialize; resume the session that the options name, if they name one.

        Raises `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation`, or `RequestFailed` when the server
        refuses.
        """
        # A session of an earlier client stays attached until the server has noticed that client's end.
        wanted = self._options.resume_session_id
        deadline = time.monotonic() + self._options.resume_window
        while True:
            try:
                self._adopt(*self._attach(wanted))
                return
            except SessionBusyError:
                if time.monotonic() + self._options.resume_interval > deadline:
                    raise
            gevent.sleep(self._options.resume_interval)

    def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Call a method of the contract and return its result.

        Raises as `request` does, and `ProtocolViolation` if the result does not have the method's type.
        """
        return wire.decode(method.result, self.request(method.name, params, resend, timeout), method.name)

    def request(
        self, method: str, params: object, resend: bool = False, timeout: float | None = None
    ) -> msgspec.Raw:
        """Call any method and return its result as JSON text.

        `timeout` is in seconds and covers waiting for a connection, too.  Raises as `Connection.request`
        does.
        """
        if timeout is None:
            timeout = self._options.request_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        losses = 0
        while True:
            connection = self._usable(method, deadline)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return connection.request(method, params, left)
            except TransportClosed:
                # Whether the server has acted on it is unknown, so only calls that may be repeated are.
                losses += 1
                if not resend or losses > _MAX_RESENDS:
                    raise

    def close(self) -> None:
        """End the connection and the session object; the server keeps the session for its retention time."""
        if self.state is SessionState.ENDED:
            return
        # The state first: killing may switch to other greenlets, which must find the session ended.
        connection = self._connection
        self._finish(TransportClosed("this client was closed"))
        recovery, self._recovery = self._recovery, None  # a killed greenlet holds this object by a traceback
        if recovery is not None and recovery is not gevent.getcurrent():
            recovery.kill()
        if connection is not None:
            connection.close()

    def fresh_end(self) -> TransportClosed:
        """Return a new error that says why the session ended."""
        # One for each caller: an exception that several raise would mix their tracebacks.
        assert self._end is not None
        error = type(self._end)(str(self._end))
        error.__cause__ = self._end.__cause__
        return error

    def _usable(self, method: str, deadline: float | None) -> Connection:
        """Return the live connection; wait while there is none.  The resume window bounds the wait.

        Raises `TransportClosed` or `ResumeFailed` once the session has ended, `WaitTimeout` at the deadline.
        """
        # In a loop, since a connection may be lost again before this greenlet runs.
        while True:
            if self.state is SessionState.ENDED:
                raise self.fresh_end()
            if self.state is SessionState.OPEN and self._connection is not None:
                return self._connection
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout(f"{method} could not be sent: the connection is being resumed")
            self._settled.wait(left)

    def _attach(
        self, session_id: str | None, limit: float = math.inf
    ) -> tuple[Connection, InitializeResponse]:
        """Return an initialized connection and the answer, for a new session or to resume `session_id`.

        Each step takes at most `limit` seconds.
        """
        options = self._options
        transport = self._open_transport(min(limit, options.connect_timeout))
        connection = Connection(
            transport,
            self._gate,
            options.max_in_flight,
            self._listener.on_notification,
            self._listener.on_output,
            self._lost,
        )
        connection.start()
        try:
            params = self._introduction(session_id)
            answer = connection.request(INITIALIZE.name, params, min(limit, options.initialize_timeout))
            found = wire.decode(INITIALIZE.result, answer, INITIALIZE.name)
            # A server that ignores the id would make a new session, in which every process is missing.
            if session_id is not None and found.session_id != session_id:
                raise ProtocolViolation(f"asked for session {session_id}, got {found.session_id}")
            connection.notify(INITIALIZED.name, InitializedNotification())
        except WaitTimeout as error:
            connection.close()
            raise ConnectTimeout(str(error)) from error
        except TransportClosed:
            connection.close()
            if isinstance(connection.lost, RegistryRefused):  # final, unlike other losses
                raise kept(connection.lost) from None
            raise
        except BaseException:  # also a greenlet that is killed: nobody else knows of this connection
            connection.close()
            raise
        return connection, found

    def _introduction(self, session_id: str | None) -> dict[str, object]:
        """Return the params of `initialize`; what no contract has is left out where it is not used."""
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

    def _adopt(self, connection: Connection, found: InitializeResponse) -> None:
        # `_lost` ignores a connection that is not adopted yet, so its loss must be noticed here.
        if connection.lost is not None:
            raise TransportClosed(
                f"the new connection was lost again: {connection.lost}"
            ) from connection.lost
        self._connection = connection
        self.session_id = found.session_id
        if isinstance(found.kept, KeptSession):
            self.kept = found.kept
        # Servers of the older contract send none.
        if isinstance(found.environment_info, EnvironmentInfo):
            self.environment_info = found.environment_info
        self._open_since = time.monotonic()
        self.state = SessionState.OPEN
        self._settled.set()

    def _lost(self, connection: Connection, error: ExecServerError) -> None:
        if connection is not self._connection or self.state is not SessionState.OPEN:
            return  # one that was never adopted: `_attach` or `_adopt` raises for it
        # Before anything else: no call may use it any more.
        self._connection = None
        self._listener.on_lost(error)
        # A server over stdio has ended with its pipes.
        if not self._can_resume:
            self._finish(_ended(TransportClosed, f"the connection ended: {error}", error))
            return
        self.state = SessionState.RESUMING
        self._settled.clear()
        # Not here: this runs in whatever greenlet noticed the loss.
        self._recovery = gevent.spawn(self._recover, error)

    def _recover(self, cause: ExecServerError) -> None:
        window, interval = self._options.resume_window, self._options.resume_interval
        # The default window of 25 s ends before the 30 s for which a server keeps a detached session.
        deadline = time.monotonic() + window
        pauses = self._pauses()
        if time.monotonic() - self._open_since < interval:
            gevent.sleep(interval)  # connections that are lost at once must not make this spin
        last: Exception = cause
        while (left := deadline - time.monotonic()) > 0:
            try:
                # No attempt goes beyond the window: callers rely on it for their own wait.
                self._adopt(*self._attach(self.session_id, left))
            except (TransportClosed, SessionBusyError) as error:
                # The server is away, or has not noticed the loss of the old connection: both may pass.
                last = kept(error)
            except ExecServerError as error:
                self._finish(_ended(ResumeFailed, f"the session could not be resumed: {error}", error))
                return
            else:
                self.resumptions += 1
                self._listener.on_resumed()
                return
            gevent.sleep(min(next(pauses), max(0.0, deadline - time.monotonic())))
        text = f"the connection was lost ({cause}) and not resumed within {window:g} s: {last}"
        self._finish(_ended(ResumeFailed, text, last))

    def _finish(self, error: TransportClosed) -> None:
        self.state = SessionState.ENDED
        self._end = error
        self._connection = None
        self._settled.set()
        self._listener.on_ended(error)


def _ended(kind: type[TransportClosed], text: str, cause: Exception) -> TransportClosed:
    # `kept`: the session holds this error, and a traceback in it would hold the session.
    error = kind(text)
    error.__cause__ = kept(cause)
    return error
