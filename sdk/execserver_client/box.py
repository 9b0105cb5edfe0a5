"""`Box`: a machine on which commands run, as long as the connection to it, and over its losses.

async with connect("dev") as box:
    result = await box.run(["make", "test"], cwd="/src", sandbox="workspace-write", timeout=600)
    print(result.exit_code, result.text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from execserver.client.errors import ExecServerError, RequestFailed
from execserver.client.greenlets.router import Router
from execserver.client.operations.processes import require_members
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.collecting import MAX_COLLECTED
from execserver.client.rules.recovery import Pauses, SessionState
from execserver.client.rules.starting import INHERIT_ENVIRONMENT, start_params
from execserver.client.rules.wire import RemotePath, path_uri
from execserver.protocol.audit import AuditHeadResponse
from execserver.protocol.environment import (
    EnvironmentInfo,
    EnvironmentSandboxResponse,
    EnvironmentStatusResponse,
    Extensions,
)
from execserver.protocol.own_methods import AUDIT_HEAD
from execserver.protocol.paths import PathUri
from execserver.protocol.process import ExecEnvPolicy, ExecParams, ProcessListEntry, TerminateParams
from execserver.protocol.process_methods import (
    ENVIRONMENT_INFO,
    ENVIRONMENT_SANDBOX,
    ENVIRONMENT_STATUS,
    PROCESS_LIST,
    PROCESS_START,
    PROCESS_TERMINATE,
)
from execserver.protocol.session import KeptSession, NoParams
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._running import Command, complete
from execserver_client._session import Session
from execserver_client._transport import OpenTransport
from execserver_client.process import Process
from execserver_client.result import Result
from execserver_client.sandbox import AnySandbox, context_of

if TYPE_CHECKING:
    from execserver.protocol.resource_limits import ResourceLimits
    from execserver_client.files import Files
    from execserver_client.http import Http
    from execserver_client.ports import Ports
    from execserver_client.sessions import Sessions


class Box:
    """A session with the server of one machine; made by `connect`.

    Leaving the `async with` block (or `aclose`) kills the processes that still run; `detach` leaves them to a
    client that resumes the session in time.  A box belongs to the event loop in which it was made; several
    tasks may use it at once.

    A lost connection is resumed by itself (`ConnectOptions.resume_window`): calls in flight then raise
    `TransportClosed`, processes go on.  When the window is over, everything raises `ResumeFailed`.
    """

    def __init__(
        self,
        open_transport: OpenTransport,
        options: ExecServerClientConnectOptions,
        *,
        can_resume: bool = True,
        pauses: Pauses | None = None,
        home: PathUri | None = None,
    ) -> None:
        """Prepare a session over connections made by `open_transport`; use `connect` instead.

        `home`: where commands start if they do not say; None is the home of the box's user.
        """
        self._options = options
        self._home = home
        self._gate = Gate(options.max_unread_bytes, options.max_unread_bytes_while_waiting)
        self._errands = Errands(self._gate)
        self._begin = self._errands.begin  # one bound method for all processes
        self._router = Router(self._errands.begin)
        self._session = Session(open_transport, options, self._gate, self._router, can_resume, pauses)

    async def open(self) -> Self:
        """Connect.  Raises `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation` or `RequestFailed`."""
        await self._session.open()
        return self

    @property
    def session_id(self) -> str:
        """The id under which another client can resume this session."""
        return self._session.session_id

    @property
    def kept(self) -> KeptSession | None:
        """How long the server keeps this session, and its name; None if nobody asked for either."""
        return self._session.kept

    @property
    def state(self) -> SessionState:
        """Whether the session is open, being resumed, or ended."""
        return self._session.state

    @property
    def resumptions(self) -> int:
        """How often the session was resumed after the connection was lost."""
        return self._session.resumptions

    @property
    def extensions(self) -> Extensions:
        """What the server offers beyond the contract."""
        return self._session.extensions

    @property
    def server_info(self) -> EnvironmentInfo | None:
        """What the server said about itself when it was connected to; None from servers of old contracts."""
        return self._session.environment_info

    @property
    def home(self) -> PathUri:
        """The folder in which commands start that do not say where."""
        info = self.server_info
        told = None if info is None else info.user_home_dir or info.cwd
        return self._home or told or PathUri.from_native(b"/")

    # The parts are loaded when they are first used: few programs need all.
    @cached_property
    def files(self) -> Files:
        """The files of the box."""
        from execserver_client.files import Files

        return Files(self._session, self._gate, self._router, self._errands, self._home)

    @cached_property
    def ports(self) -> Ports:
        """TCP connections from and to the box."""
        from execserver_client.ports import Ports

        return Ports(self._session, self._gate, self._router, self._errands)

    @cached_property
    def http(self) -> Http:
        """HTTP requests that the box makes."""
        from execserver_client.http import Http

        return Http(self._session, self._gate, self._router)

    @cached_property
    def sessions(self) -> Sessions:
        """Kept sessions, and the processes in them."""
        from execserver_client.sessions import Sessions

        patience = self._options.close_timeout
        return Sessions(self._session, self._gate, self._router, self._errands, patience)

    def on_connection_change(self, on_change: Callable[[bool], None] | None) -> None:
        """Have `on_change` called with False when the connection is lost, True when it was resumed.

        It is called in the event loop and must not block.  There is one at a time; None ends it.
        """
        self._router.on_change = on_change

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | str | None = None,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        env_policy: ExecEnvPolicy | None = None,
        sandbox: AnySandbox = None,
        limits: ResourceLimits | None = None,
        record: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        max_output: int = MAX_COLLECTED,
        allow_gaps: bool = False,
        tty: bool = False,
        arg0: str | None = None,
        name: str | None = None,
    ) -> Result:
        """Run a command to its end and return its output and exit code.

        The arguments are as for `start`.  `input` is written to its stdin, text as UTF-8, which is then
        closed; without it stdin is empty.  A command that has not ended after `timeout` seconds is killed,
        as it is when the awaiting task is cancelled.

        Raises `CommandTimeout` with the output so far; `CommandFailed` with `check` for another exit code
        than 0; `OutputTooLarge` beyond `max_output` bytes and `OutputGap` for lost output (unless
        `allow_gaps`), having killed the command; and what `start` raises.
        """
        given = input.encode() if isinstance(input, str) else input
        command = Command(tuple(argv), given, timeout, check, max_output, allow_gaps)

        async def start() -> Process:
            return await self.start(
                argv,
                cwd=cwd,
                env=env,
                env_policy=env_policy,
                tty=tty,
                pipe_stdin=input is not None and not tty,
                arg0=arg0,
                sandbox=sandbox,
                limits=limits,
                record=record,
                name=name,
            )

        return await complete(start, command)

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        env_policy: ExecEnvPolicy | None = None,
        tty: bool = False,
        pipe_stdin: bool = False,
        arg0: str | None = None,
        sandbox: AnySandbox = None,
        limits: ResourceLimits | None = None,
        record: str | None = None,
        name: str | None = None,
        process_id: str | None = None,
        collect_output: bool = True,
    ) -> Process:
        """Start a program and return it.

        `argv` is a list of words; for a line of shell write `["bash", "-lc", line]`.  `cwd` None is `home`.
        `env` is set over the server's own variables; `env_policy` says which of those there are, by default
        `INHERIT_ENVIRONMENT` (all), with `EMPTY_ENVIRONMENT` none.  Without `pipe_stdin` or `tty` its input
        is empty.  `sandbox`: a `Sandbox`, `read-only`, `workspace-write` or `full-access`, or the contract's
        object.  With `collect_output` False output is not kept for iteration; use it if only the exit counts,
        or if output is taken with `Process.read`.  Extensions of this project's server: `limits` on what it
        and all it starts may use (`Process.exited` then says how it ended); `record`, `output` or `all`.

        Raises `UnsupportedByServer` for limits and records that the server would not see, `RequestFailed`
        when the program cannot be started, TypeError for an `argv` that is one string,
        `InvalidPath` and ValueError for what cannot be meant.  When the connection is lost before the answer,
        or this is cancelled, the process is killed as soon as there is a connection.
        """
        if isinstance(argv, str | bytes):
            raise TypeError(f'argv is a list of words; for a line of shell write ["bash", "-lc", {argv!r}]')
        folder = path_uri(self.home if cwd is None else cwd)
        params = start_params(
            argv,
            cwd=folder,
            env=env,
            env_policy=env_policy or INHERIT_ENVIRONMENT,
            tty=tty,
            pipe_stdin=pipe_stdin,
            arg0=arg0,
            sandbox=context_of(sandbox, folder),
            process_id=process_id,
            process_name=name,
            limits=limits,
            record=record,
        )
        return await self._start(params, collect_output)

    async def attach(self, process_id: str, after_seq: int = 0) -> Process:
        """Return a process of a resumed session, with its events after `after_seq` as far as retained.

        Raises `InvalidRequestError` when the session has no such process.
        """
        router = self._router
        process = self._handle(process_id, sandboxed=True, after_seq=after_seq)
        earlier = router.processes.get(process_id)
        router.processes[process_id] = process
        try:
            await process.catch_up(router.forget_if_finished)
            process.raise_failure()
        except BaseException:
            router.forget(process, earlier)
            raise
        return process

    async def processes(self) -> tuple[ProcessListEntry, ...]:
        """Return the processes of the session with what they use (an extension of this project's server)."""
        return (await self._session.call(PROCESS_LIST, NoParams())).processes

    async def info(self) -> EnvironmentInfo:
        """Return what kind of machine the box is."""
        return await self._session.call(ENVIRONMENT_INFO, NoParams())

    async def status(self) -> EnvironmentStatusResponse:
        """Return whether the box takes work (servers from 0.169.0 on)."""
        return await self._session.call(ENVIRONMENT_STATUS, NoParams())

    async def audit_head(self) -> AuditHeadResponse:
        """Return where the box's audit log stands: the number of its records, the digest of the newest.

        Only servers whose `extensions` have `audit_head` know the method.
        """
        return await self._session.call(AUDIT_HEAD, NoParams())

    async def sandbox_report(self) -> EnvironmentSandboxResponse:
        """Return which sandboxes work on the box, and what blocks the others.

        Only servers whose `extensions` have `environment_sandbox` know the method.
        """
        return await self._session.call(ENVIRONMENT_SANDBOX, NoParams())

    async def call(self, method: str, params: object = None, *, timeout: float | None = None) -> object:
        """Call any method with plain JSON values and return its result as such.

        `timeout` is in seconds.  Raises `RequestFailed`, `TransportClosed` and `WaitTimeout`.
        """
        return msgspec.json.decode(bytes(await self._session.request(method, params, timeout=timeout)))

    async def detach(self) -> None:
        """End the connection only: the server keeps the session for a while so that it can be resumed."""
        await self._close()

    async def aclose(self) -> None:
        """Kill the processes that still run and end the connection.  May be called again.

        Takes at most `ConnectOptions.close_timeout`, and what the connection needs to end.
        """
        for process in list(self._router.processes.values()):
            if not process.watched:
                self._errands.begin(self._terminate, process.process_id)
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self, params: ExecParams, collect_output: bool) -> Process:
        require_members(self.extensions, params)
        router = self._router
        sandboxed = params.sandbox is not None
        process = self._handle(params.process_id, sandboxed=sandboxed, collect_output=collect_output)
        earlier = router.processes.get(params.process_id)
        # Before the request: the first notifications may overtake its answer.
        router.processes[params.process_id] = process
        try:
            await self._session.request(PROCESS_START.name, params)
        except RequestFailed:
            router.forget(process, earlier)
            raise
        except BaseException:
            router.forget(process, earlier)
            # Whether the server has started it is unknown.  With the id of a living one it has not.
            if earlier is None:
                self._errands.begin(self._terminate, params.process_id)
            raise
        return process

    def _handle(
        self, process_id: str, *, sandboxed: bool, collect_output: bool = True, after_seq: int = 0
    ) -> Process:
        return Process(
            self._session,
            self._gate,
            process_id,
            begin=self._begin,
            sandboxed=sandboxed,
            collect_output=collect_output,
            after_seq=after_seq,
            close_timeout=self._options.close_timeout,
        )

    async def _terminate(self, process_id: str) -> None:
        """Kill a process that nobody will use, now or after a resume."""
        params = TerminateParams(process_id=process_id)
        try:
            await self._session.call(PROCESS_TERMINATE, params, resend=True)
        except ExecServerError:
            pass  # the session has ended, and the server kills its processes by itself

    async def _close(self) -> None:
        """Do what is left to do, such as kills; what takes too long, and all else, ends with the session."""
        try:
            if self._session.state is SessionState.OPEN:
                await self._errands.settle(self._options.close_timeout)
        finally:
            try:
                await self._session.close()
            finally:
                await self._errands.close()
