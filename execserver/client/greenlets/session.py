"""One session with a server: initialize, calls, and resuming it after the connection was lost.

What happens when is decided by `execserver.client.rules.recovery`; this module connects and waits.  Calls
made while there is no connection wait for the next one.  Calls in flight fail with `TransportClosed`, except
those made with `resend`, which are sent again on the new connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, TypeAlias, TypeVar

import gevent
import msgspec
from gevent.event import Event

from execserver.client.carriers.transport import Transport
from execserver.client.errors import (
    ConnectTimeout,
    ExecServerError,
    RegistryRefused,
    SessionBusyError,
    StartFailed,
    TransportClosed,
    WaitTimeout,
    kept,
)
from execserver.client.greenlets.connection import Connection
from execserver.client.greenlets.flow import Gate
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules import wire
from execserver.client.rules.recovery import (
    Pauses,
    SessionListener,
    SessionRules,
    SessionState,
    check_resumed,
    lost_at_once,
    not_sent,
    too_late,
)
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.lifting import JsonText
from execserver.protocol.method import Method
from execserver.protocol.process_methods import INITIALIZE, INITIALIZED
from execserver.protocol.record import Record
from execserver.protocol.session import InitializedNotification, InitializeResponse, KeptSession

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)

_OPEN: Final = SessionState.OPEN  # each key asks, and looking a member up costs more

OpenTransport: TypeAlias = Callable[[float], Transport]
"""Makes a new connection within so many seconds.  Raises `ConnectFailed` or `ConnectTimeout`."""


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
        self._rules = SessionRules(options, can_resume, pauses)
        self._open_transport = open_transport
        self._options = options
        self._gate = gate
        self._listener = listener
        self._connection: Connection | None = None
        self._settled = Event()  # set while the session is open or ended
        self._recovery: gevent.Greenlet[[ExecServerError], None] | None = None

    @property
    def state(self) -> SessionState:
        """Whether the session is open, being resumed, or ended."""
        return self._rules.state

    @property
    def session_id(self) -> str:
        """The id under which the server knows the session, empty before `open`."""
        return self._rules.session_id

    @property
    def environment_info(self) -> EnvironmentInfo | None:
        """What the server reported about itself, None from one of the older contract."""
        return self._rules.environment_info

    @property
    def kept(self) -> KeptSession | None:
        """How long the server keeps the session, and its name."""
        return self._rules.kept

    @property
    def resumptions(self) -> int:
        """How often the session was resumed."""
        return self._rules.resumptions

    @property
    def extensions(self) -> Extensions:
        """The extensions that the server announces; none if it announces nothing."""
        return self._rules.extensions

    @property
    def request_timeout(self) -> float | None:
        """How long a request may take at most, in seconds; None without a limit."""
        return self._options.request_timeout

    def open(self, ahead: Callable[[Connection], object] | None = None) -> None:
        """Connect and initialize; resume the session that the options name, if they name one.

        For a new session `ahead` is called with the connection before the answer has come: what it sends is
        not acted on if the server refuses the session.

        Raises `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation`, or `RequestFailed` when the server
        refuses.
        """
        if self._options.resume_session_name is not None:
            ahead = None
        began = time.monotonic()
        while True:
            try:
                self._adopt(*self._attach(self._options.resume_session_id, ahead=ahead))
                return
            except SessionBusyError:
                pause = self._rules.pause_while_busy(began, time.monotonic())
                if pause is None:
                    raise
            gevent.sleep(pause)

    def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Call a method of the contract and return its result.

        Raises as `request` does, and `ProtocolViolation` if the result does not have the method's type.
        """
        return wire.decode(method.result, self.request(method.name, params, resend, timeout), method.name)

    def request(
        self, method: str, params: object, resend: bool = False, timeout: float | None = None
    ) -> JsonText:
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
            except TransportClosed as lost:
                # Whether the server has acted on it is unknown, so only calls that may be repeated are.
                losses += 1
                if not resend or not self._rules.may_send_again(losses, lost):
                    raise

    def connection(self) -> Connection:
        """Return the live connection, for requests that must not go out on another one; wait for one.

        Raises `TransportClosed` or `ResumeFailed` once the session has ended.
        """
        return self._usable("a request", None)

    @property
    def at_hand(self) -> Connection | None:
        """The live connection; None where one would have to wait for it."""
        return self._connection if self._rules.state is _OPEN else None

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

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager; inside, the current greenlet counts as waiting for the server."""
        return self._gate.waiting()

    def fresh_end(self) -> TransportClosed:
        """Return a new error that says why the session ended."""
        return self._rules.fresh_end()

    def _usable(self, method: str, deadline: float | None) -> Connection:
        """Return the live connection; wait while there is none.  The resume window bounds the wait.

        Raises `TransportClosed` or `ResumeFailed` once the session has ended, `WaitTimeout` at the deadline.
        """
        # In a loop, since a connection may be lost again before this greenlet runs.
        while True:
            state = self._rules.state
            if state is SessionState.ENDED:
                raise self._rules.fresh_end()
            if state is SessionState.OPEN and self._connection is not None:
                return self._connection
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise not_sent(method)
            self._settled.wait(left)

    def _attach(
        self,
        session_id: str | None,
        limit: float = math.inf,
        ahead: Callable[[Connection], object] | None = None,
    ) -> tuple[Connection, InitializeResponse]:
        """Return an initialized connection and the answer, for a new session or to resume `session_id`.

        Each step takes at most `limit` seconds.  `ahead` is as for `open`.
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
            params = self._rules.introduction(session_id)
            limit = min(limit, options.initialize_timeout)
            if ahead is None or session_id is not None:
                answer = connection.request(INITIALIZE.name, params, limit)
                ahead = None
            else:
                answer = _introduced(connection, params, limit, ahead)
            found = wire.decode(INITIALIZE.result, answer, INITIALIZE.name)
            check_resumed(session_id, found)
            if ahead is None:
                connection.notify(INITIALIZED.name, InitializedNotification())
        except WaitTimeout as error:
            connection.close()
            raise ConnectTimeout(str(error)) from error
        except TransportClosed:
            connection.close()
            if isinstance(connection.lost, RegistryRefused | StartFailed):  # final, unlike other losses
                raise kept(connection.lost) from None
            raise
        except BaseException:  # also a greenlet that is killed: nobody else knows of this connection
            connection.close()
            raise
        return connection, found

    def _adopt(self, connection: Connection, found: InitializeResponse) -> None:
        # `_lost` ignores a connection that is not adopted yet, so its loss must be noticed here.
        if connection.lost is not None:
            raise lost_at_once(connection.lost)
        self._connection = connection
        self._rules.adopt(found, time.monotonic())
        if self._rules.extensions.binary_messages:
            connection.use_binary()
        self._settled.set()

    def _lost(self, connection: Connection, error: ExecServerError) -> None:
        if connection is not self._connection or self.state is not SessionState.OPEN:
            return  # one that was never adopted: `_attach` or `_adopt` raises for it
        # Before anything else: no call may use it any more.
        self._connection = None
        self._listener.on_lost(error)
        end = self._rules.lose(error)
        if end is not None:
            self._finish(end)
            return
        self._settled.clear()
        # Not here: this runs in whatever greenlet noticed the loss.
        self._recovery = gevent.spawn(self._recover, error)

    def _recover(self, cause: ExecServerError) -> None:
        recovery = self._rules.recover(cause, time.monotonic())
        if recovery.first_pause:
            gevent.sleep(recovery.first_pause)
        while (left := recovery.left(time.monotonic())) > 0:
            try:
                self._adopt(*self._attach(self.session_id, left))
            except ExecServerError as error:
                pause = recovery.failed(error, time.monotonic())
                if pause is None:
                    break
            else:
                self._rules.resumptions += 1
                self._listener.on_resumed()
                return
            gevent.sleep(pause)
        self._finish(recovery.end())

    def _finish(self, error: TransportClosed) -> None:
        self._rules.finish(error)
        self._connection = None
        self._settled.set()
        self._listener.on_ended(error)


def _introduced(
    connection: Connection, params: object, limit: float, ahead: Callable[[Connection], object]
) -> JsonText:
    """Initialize, with something right behind; return the answer as `Connection.request` does."""
    # In order on one connection, so it is acted on behind both, and far away it costs no way of its own.
    with gevent.Timeout(limit, too_late(INITIALIZE.name, limit)):
        posted = connection.post(INITIALIZE.name, params)
        connection.notify(INITIALIZED.name, InitializedNotification())
        ahead(connection)
        outcome = posted.outcome()
    if isinstance(outcome, ExecServerError):
        raise kept(outcome)
    return outcome
