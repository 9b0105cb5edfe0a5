"""The blocking twin of `execserver_client.box`; `build.py docs` writes it from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from execserver.client.rules.collecting import MAX_COLLECTED
from execserver.client.rules.recovery import SessionState
from execserver.client.rules.wire import RemotePath
from execserver.protocol.audit import AuditHeadResponse
from execserver.protocol.environment import (
    EnvironmentInfo,
    EnvironmentSandboxResponse,
    EnvironmentStatusResponse,
    Extensions,
)
from execserver.protocol.paths import PathUri
from execserver.protocol.process import ExecEnvPolicy, ProcessListEntry
from execserver.protocol.resource_limits import ResourceLimits
from execserver.protocol.session import KeptSession
from execserver_client import box as asynchronous
from execserver_client.result import Result
from execserver_client.sandbox import AnySandbox
from execserver_client.sync._portal import Portal
from execserver_client.sync.process import Process

if TYPE_CHECKING:
    from execserver_client.sync.files import Files
    from execserver_client.sync.http import Http
    from execserver_client.sync.ports import Ports
    from execserver_client.sync.sessions import Sessions


class Box:
    """A session with the server of one machine; made by `connect`.

    Leaving the `with` block (or `close`) kills the processes that still run; `detach` leaves them to a
    client that resumes the session in time.  Several threads may use it at once.

    A lost connection is resumed by itself (`ConnectOptions.resume_window`): calls in flight then raise
    `TransportClosed`, processes go on.  When the window is over, everything raises `ResumeFailed`.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Box) -> None:
        self._portal = portal
        self._wrapped = wrapped
        portal.adopt(wrapped.aclose)

    def open(self) -> Self:
        """Connect.  Raises `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation` or `RequestFailed`."""
        self._portal.call(self._wrapped.open)
        return self

    @property
    def session_id(self) -> str:
        """The id under which another client can resume this session."""
        return self._wrapped.session_id

    @property
    def kept(self) -> KeptSession | None:
        """How long the server keeps this session, and its name; None if nobody asked for either."""
        return self._wrapped.kept

    @property
    def state(self) -> SessionState:
        """Whether the session is open, being resumed, or ended."""
        return self._wrapped.state

    @property
    def resumptions(self) -> int:
        """How often the session was resumed after the connection was lost."""
        return self._wrapped.resumptions

    @property
    def extensions(self) -> Extensions:
        """What the server offers beyond the contract."""
        return self._wrapped.extensions

    @property
    def server_info(self) -> EnvironmentInfo | None:
        """What the server said about itself when it was connected to; None from servers of old contracts."""
        return self._wrapped.server_info

    @property
    def home(self) -> PathUri:
        """The folder in which commands start that do not say where."""
        return self._wrapped.home

    @property
    def files(self) -> Files:
        """The files of the box."""
        from execserver_client.sync.files import Files

        return Files(self._portal, self._wrapped.files)

    @property
    def ports(self) -> Ports:
        """TCP connections from and to the box."""
        from execserver_client.sync.ports import Ports

        return Ports(self._portal, self._wrapped.ports)

    @property
    def http(self) -> Http:
        """HTTP requests that the box makes."""
        from execserver_client.sync.http import Http

        return Http(self._portal, self._wrapped.http)

    @property
    def sessions(self) -> Sessions:
        """Kept sessions, and the processes in them."""
        from execserver_client.sync.sessions import Sessions

        return Sessions(self._portal, self._wrapped.sessions)

    def on_connection_change(self, on_change: Callable[[bool], None] | None) -> None:
        """Have `on_change` called with False when the connection is lost, True when it was resumed.

        It is called in a thread of this package and must not block.  There is one at a time; None ends it.
        """
        self._portal.run(self._wrapped.on_connection_change, on_change)

    def run(
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
        as it is when the waiting thread is interrupted.

        Raises `CommandTimeout` with the output so far; `CommandFailed` with `check` for another exit code
        than 0; `OutputTooLarge` beyond `max_output` bytes and `OutputGap` for lost output (unless
        `allow_gaps`), having killed the command; and what `start` raises.
        """
        return self._portal.call(
            self._wrapped.run,
            argv,
            input=input,
            cwd=cwd,
            env=env,
            env_policy=env_policy,
            sandbox=sandbox,
            limits=limits,
            record=record,
            timeout=timeout,
            check=check,
            max_output=max_output,
            allow_gaps=allow_gaps,
            tty=tty,
            arg0=arg0,
            name=name,
        )

    def start(
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
        found = self._portal.call(
            self._wrapped.start,
            argv,
            cwd=cwd,
            env=env,
            env_policy=env_policy,
            tty=tty,
            pipe_stdin=pipe_stdin,
            arg0=arg0,
            sandbox=sandbox,
            limits=limits,
            record=record,
            name=name,
            process_id=process_id,
            collect_output=collect_output,
        )
        return Process(self._portal, found)

    def attach(self, process_id: str, after_seq: int = 0) -> Process:
        """Return a process of a resumed session, with its events after `after_seq` as far as retained.

        Raises `InvalidRequestError` when the session has no such process.
        """
        return Process(self._portal, self._portal.call(self._wrapped.attach, process_id, after_seq))

    def processes(self) -> tuple[ProcessListEntry, ...]:
        """Return the processes of the session with what they use (an extension of this project's server)."""
        return self._portal.call(self._wrapped.processes)

    def info(self) -> EnvironmentInfo:
        """Return what kind of machine the box is."""
        return self._portal.call(self._wrapped.info)

    def status(self) -> EnvironmentStatusResponse:
        """Return whether the box takes work (servers from 0.169.0 on)."""
        return self._portal.call(self._wrapped.status)

    def audit_head(self) -> AuditHeadResponse:
        """Return where the box's audit log stands: the number of its records, the digest of the newest.

        Only servers whose `extensions` have `audit_head` know the method.
        """
        return self._portal.call(self._wrapped.audit_head)

    def sandbox_report(self) -> EnvironmentSandboxResponse:
        """Return which sandboxes work on the box, and what blocks the others.

        Only servers whose `extensions` have `environment_sandbox` know the method.
        """
        return self._portal.call(self._wrapped.sandbox_report)

    def call(self, method: str, params: object = None, *, timeout: float | None = None) -> object:
        """Call any method with plain JSON values and return its result as such.

        `timeout` is in seconds.  Raises `RequestFailed`, `TransportClosed` and `WaitTimeout`.
        """
        return self._portal.call(self._wrapped.call, method, params, timeout=timeout)

    def detach(self) -> None:
        """End the connection only: the server keeps the session for a while so that it can be resumed."""
        try:
            self._portal.call(self._wrapped.detach)
        finally:
            self._portal.adopt(None)
            self._portal.close()

    def close(self) -> None:
        """Kill the processes that still run and end the connection.  May be called again.

        Takes at most `ConnectOptions.close_timeout`, and what the connection needs to end.
        """
        self._portal.close()

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.close()
