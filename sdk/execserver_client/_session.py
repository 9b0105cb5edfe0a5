"""One session with a server: initialize, calls, and resuming it after the connection was lost.

What happens when is decided by `execserver.client.rules.recovery`, as for the gevent client.  Calls made
while there is no connection wait for the next one.  Calls in flight fail with `TransportClosed`, except those
made with `resend`, which are sent again on the new connection.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TypeVar

import msgspec

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
)
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.lifting import JsonText
from execserver.protocol.method import Method
from execserver.protocol.process_methods import INITIALIZE, INITIALIZED
from execserver.protocol.record import Record
from execserver.protocol.session import InitializedNotification, InitializeResponse, KeptSession
from execserver_client._connection import Connection
from execserver_client._flow import Gate
from execserver_client._tasks import Tasks
from execserver_client._transport import OpenTransport

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)


class Session:
    """Owns the current connection; `open_transport` makes the next one.  `close` must be awaited.

    With `can_resume` False the first loss is final.  The listener's callbacks are called in the event loop.
    """

    def __init__(
        self,
        open_transport: OpenTransport,
        options: ExecServerClientConnectOptions,
        gate: Gate,
        listener: SessionListener,
        can_resume: bool = True,
        pauses: Pauses | None = None,
    ) -> None:
        self._rules = SessionRules(options, can_resume, pauses)
        self._open_transport = open_transport
        self._options = options
        self._gate = gate
        self._listener = listener
        self._connection: Connection | None = None
        self._settled = asyncio.Event()  # set while the session is open or ended
        self._recovery: asyncio.Task[None] | None = None
        self._tasks = Tasks()  # the recovery, and the ends of lost connections

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
    def extensions(self) -> Extensions:
        """The extensions that the server announces; none if it announces nothing."""
        return self._rules.extensions

    @property
    def kept(self) -> KeptSession | None:
        """How long the server keeps the session, and its name."""
        return self._rules.kept

    @property
    def resumptions(self) -> int:
        """How often the session was resumed."""
        return self._rules.resumptions

    async def open(self) -> None:
        """Connect and initialize; resume the session that the options name, if they name one.

        Raises `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation`, or `RequestFailed` when the server
        refuses; then nothing is left open.
        """
        began = time.monotonic()
        while True:
            try:
                await self._attach(self._options.resume_session_id)
                return
            except SessionBusyError:
                pause = self._rules.pause_while_busy(began, time.monotonic())
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Call a method of the contract and return its result.

        Raises as `request` does, and `ProtocolViolation` if the result does not have the method's type.
        """
        answer = await self.request(method.name, params, resend, timeout)
        return wire.decode(method.result, answer, method.name)

    async def request(
        self, method: str, params: object, resend: bool = False, timeout: float | None = None
    ) -> JsonText:
        """Call any method and return its result as JSON text.

        `timeout` is in seconds and covers waiting for a connection, too; None: that of the options.  Raises
        as `Connection.request` does.  Cancelling forgets the call, which the server may have carried out.
        """
        if timeout is None:
            timeout = self._options.request_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        losses = 0
        while True:
            connection = await self._usable(method, deadline)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return await connection.request(method, params, left)
            except TransportClosed as lost:
                # Whether the server has acted on it is unknown, so only calls that may be repeated are.
                losses += 1
                if not resend or not self._rules.may_send_again(losses, lost):
                    raise

    @property
    def request_timeout(self) -> float | None:
        """How many seconds a call may take whose caller sets no limit; None: any."""
        return self._options.request_timeout

    async def connection(self, method: str) -> Connection:
        """Return the live connection, for calls that must not go out on another one; wait for one.

        Raises `TransportClosed` or `ResumeFailed` once the session has ended, and `WaitTimeout` after
        `request_timeout`.
        """
        limit = self.request_timeout
        return await self._usable(method, None if limit is None else time.monotonic() + limit)

    async def close(self) -> None:
        """End the connection and the session object; the server keeps the session for its retention time.

        Nothing is left when it returns.  May be called again, and by several.
        """
        connection = self._connection
        if self.state is not SessionState.ENDED:
            self._finish(TransportClosed("this client was closed"))
            if self._recovery is not None and self._recovery is not asyncio.current_task():
                self._recovery.cancel()
            if connection is not None:
                self._tasks.spawn(connection.close())
        await self._tasks.settle()

    def fresh_end(self) -> TransportClosed:
        """Return a new error that says why the session ended."""
        return self._rules.fresh_end()

    async def _usable(self, method: str, deadline: float | None) -> Connection:
        """Return the live connection; wait while there is none.  The resume window bounds the wait.

        Raises `TransportClosed` or `ResumeFailed` once the session has ended, `WaitTimeout` at the deadline.
        """
        # In a loop, since a connection may be lost again before this task runs.
        while True:
            state = self._rules.state
            if state is SessionState.ENDED:
                raise self._rules.fresh_end()
            if state is SessionState.OPEN and self._connection is not None:
                return self._connection
            limit = asyncio.timeout(None if deadline is None else deadline - time.monotonic())
            try:
                async with limit:
                    await self._settled.wait()
            except TimeoutError:
                raise not_sent(method) from None

    async def _attach(self, session_id: str | None, limit: float = math.inf) -> None:
        """Put an initialized connection in use, for a new session or to resume `session_id`.

        Each step takes at most `limit` seconds.
        """
        options = self._options
        transport = await self._open_transport(min(limit, options.connect_timeout))
        connection = Connection(
            transport,
            self._gate,
            options.max_in_flight,
            self._listener.on_notification,
            self._listener.on_output,
            self._lost,
        )
        try:
            found = await self._introduce(connection, session_id, min(limit, options.initialize_timeout))
            self._adopt(connection, found)
        except WaitTimeout as error:
            await connection.close()
            raise ConnectTimeout(str(error)) from error
        except TransportClosed:
            await connection.close()
            if isinstance(connection.lost, RegistryRefused | StartFailed):  # final, unlike other losses
                raise kept(connection.lost) from None
            raise
        except BaseException:  # also a task that is cancelled: nobody else knows of this connection
            await connection.close()
            raise

    async def _introduce(
        self, connection: Connection, session_id: str | None, limit: float
    ) -> InitializeResponse:
        answer = await connection.request(INITIALIZE.name, self._rules.introduction(session_id), limit)
        found = wire.decode(INITIALIZE.result, answer, INITIALIZE.name)
        check_resumed(session_id, found)
        await connection.notify(INITIALIZED.name, InitializedNotification())
        return found

    def _adopt(self, connection: Connection, found: InitializeResponse) -> None:
        # `_lost` ignores a connection that is not adopted yet, so its loss must be noticed here.
        if connection.lost is not None:
            raise lost_at_once(connection.lost)
        if self.state is SessionState.ENDED:
            raise self.fresh_end()
        self._connection = connection
        self._rules.adopt(found, time.monotonic())
        if self._rules.extensions.binary_messages:
            connection.use_binary()
        self._settled.set()

    def _lost(self, connection: Connection, error: ExecServerError) -> None:
        if connection is not self._connection or self.state is not SessionState.OPEN:
            return  # one that was never adopted: `_attach` closes it
        # Before anything else: no call may use it any more.
        self._connection = None
        self._tasks.spawn(connection.close())
        self._listener.on_lost(error)
        end = self._rules.lose(error)
        if end is not None:
            self._finish(end)
            return
        self._settled.clear()
        self._recovery = self._tasks.spawn(self._recover(error))

    async def _recover(self, cause: ExecServerError) -> None:
        recovery = self._rules.recover(cause, time.monotonic())
        await asyncio.sleep(recovery.first_pause)
        while (left := recovery.left(time.monotonic())) > 0:
            try:
                await self._attach(self.session_id, left)
            except ExecServerError as error:
                pause = recovery.failed(error, time.monotonic())
                if pause is None:
                    break
            else:
                self._rules.resumptions += 1
                self._listener.on_resumed()
                return
            await asyncio.sleep(pause)
        self._finish(recovery.end())

    def _finish(self, error: TransportClosed) -> None:
        if self.state is SessionState.ENDED:
            return
        self._rules.finish(error)
        self._connection = None
        self._settled.set()
        self._listener.on_ended(error)
