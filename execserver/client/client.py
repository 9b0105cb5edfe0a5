"""`ExecServerClient`: one session with a server, as a Python object."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import gevent
import msgspec

from execserver.client.errors import InvalidUrl, RemoteModeUnavailable
from execserver.client.greenlets.flow import Gate
from execserver.client.greenlets.router import Router
from execserver.client.greenlets.session import OpenTransport, Session
from execserver.client.launching import Launcher, ahead_of
from execserver.client.operations.processes import require_members
from execserver.client.options import (
    REMOTE_IN_FLIGHT,
    ExecServerClientConnectOptions,
    RemoteExecServerConnectArgs,
)
from execserver.client.parts import Parts
from execserver.client.process import RemoteProcess
from execserver.client.rules import wire
from execserver.client.rules.recovery import Pauses, SessionState
from execserver.client.rules.starting import start_params
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.environment import (
    EnvironmentInfo,
    EnvironmentSandboxResponse,
    EnvironmentStatusResponse,
    Extensions,
)
from execserver.protocol.process import (
    ExecEnvPolicy,
    ExecParams,
    ProcessListEntry,
)
from execserver.protocol.process_methods import (
    ENVIRONMENT_INFO,
    ENVIRONMENT_SANDBOX,
    ENVIRONMENT_STATUS,
    PROCESS_LIST,
)
from execserver.protocol.session import KeptSession, NoParams

if TYPE_CHECKING:
    from execserver.client.carriers.stdio_transport import StdioTransport
    from execserver.client.carriers.websocket_transport import WebSocketTransport
    from execserver.protocol.audit import AuditHeadResponse
    from execserver.protocol.resource_limits import ResourceLimits

URL_VARIABLE = "CODEX_EXEC_SERVER_URL"


class ExecServerClient(Parts):
    """A session with one server: start processes, use files, make HTTP requests there.

    Make one with `connect`, `connect_remote`, `connect_stdio` or `from_env`.  Leaving the `with` block (or
    `close`) kills the processes that still run; `detach` leaves them to a client that resumes the session in
    time.  Everything blocks only the calling greenlet; a client must be used in the thread that made it.  The
    file methods (`read_file`, `write_file`, `open_file`, ...) are those of `RemoteFiles`, the HTTP ones
    (`http_request`, `http_stream`) of `HttpClient`, and those of kept sessions
    of `RemoteSessions`.

    A lost connection is resumed automatically (`ExecServerClientConnectOptions.resume_window`); calls in
    flight then raise `TransportClosed`, processes go on.  When the window is over, everything raises
    `ResumeFailed`.
    """

    def __init__(
        self,
        open_transport: OpenTransport,
        options: ExecServerClientConnectOptions,
        can_resume: bool = True,
        pauses: Pauses | None = None,
        ahead: Callable[[], ExecParams] | None = None,
    ) -> None:
        """Open a session over connections made by `open_transport`; use the `connect...` methods instead."""
        self._gate = Gate(options.max_unread_bytes, options.max_unread_bytes_while_waiting)
        self._router = Router(gevent.spawn)
        self._options = options
        self._session = Session(open_transport, options, self._gate, self._router, can_resume, pauses)
        self._launcher = Launcher(self._session, self._gate, self._router)
        self._session.open(ahead_of(self._launcher, ahead))

    @classmethod
    def connect(
        cls,
        url: str,
        options: ExecServerClientConnectOptions | None = None,
        *,
        ahead: Callable[[], ExecParams] | None = None,
    ) -> Self:
        """Connect to `ws://HOST:PORT`, `wss://HOST/...` or `unix:///PATH`.

        `ahead` returns what to start as the first thing in a new session, for `started_ahead`.  It is sent
        before anything is known of the server, so it may only ask for what all of them know.  If the
        connection is lost before the server has answered, whether it was started is unknown.

        Raises `InvalidUrl`, `ConnectFailed`, `ConnectTimeout`, `ProtocolViolation` or `RequestFailed`.
        """
        from execserver.client.carriers.urls import parse_url  # late, as all transports: a program needs one
        from execserver.client.carriers.websocket_transport import WebSocketTransport

        chosen = options or ExecServerClientConnectOptions()
        parse_url(url)

        def open_transport(timeout: float) -> WebSocketTransport:
            return WebSocketTransport.connect(url, chosen, timeout)

        return cls(open_transport, chosen, ahead=ahead)

    @classmethod
    def connect_stdio(
        cls,
        argv: Sequence[str],
        options: ExecServerClientConnectOptions | None = None,
        *,
        env: Mapping[str, str] | None = None,
        on_start: Callable[[int], None] | None = None,
        grace: float = 0.0,
    ) -> Self:
        """Start a server such as `execserver --listen stdio` and talk to it over its stdin and stdout.

        With `env` None the server inherits this program's environment.  The server ends with the client; a
        lost one is not resumed.  `on_start` is called with the pid of the child, which is its group's, before
        anything is sent.  `grace`: seconds it may take to end by itself.  Raises as `connect` does.
        """
        from execserver.client.carriers.stdio_transport import StdioTransport

        chosen = options or ExecServerClientConnectOptions()

        def open_transport(timeout: float) -> StdioTransport:
            transport = StdioTransport(argv, env, chosen.max_message_bytes, grace=grace)
            if on_start is not None:
                on_start(transport.pid)
            return transport

        return cls(open_transport, chosen, can_resume=False)

    @classmethod
    def connect_remote(cls, args: RemoteExecServerConnectArgs) -> Self:
        """Connect to an executor behind a relay, end-to-end encrypted.

        With an executor of this project a lost connection to the relay loses nothing: calls in flight go on.
        Proxies and trusted certificates are those of the environment (`HTTPS_PROXY`, `SSL_CERT_FILE` and so
        on); `headers` and `ssl_context` of the options are not used.  At most 64 requests wait for answers,
        because other executors end a stream with more.  Raises `RemoteConfigurationError`, `RegistryRefused`,
        and what `connect` does; `RemoteModeUnavailable` where the cryptography cannot be loaded.
        """
        try:
            # Late: cryptography takes time to load.
            from execserver.client.relay.connector import RelayConnector
            from execserver.client.relay.transport import RelayTransport
        except ImportError as error:
            raise RemoteModeUnavailable(f"remote mode cannot be used here: {error}") from error
        connector = RelayConnector(args)

        def open_transport(timeout: float) -> RelayTransport:
            return RelayTransport.connect(connector, timeout)

        in_flight = min(args.options.max_in_flight, REMOTE_IN_FLIGHT)
        options = args.options.replace(max_in_flight=in_flight)
        return cls(open_transport, options, pauses=connector.pauses)

    @classmethod
    def from_env(
        cls,
        options: ExecServerClientConnectOptions | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Connect to the server that the environment names.

        `CODEX_EXEC_SERVER_NOISE_REGISTRY_URL`, `..._NOISE_ENVIRONMENT_ID` and `..._NOISE_AUTH_TOKEN` lead
        through a relay, and count before `CODEX_EXEC_SERVER_URL`.  Raises `InvalidUrl` when that is missing,
        empty, or `none`, which switches executors off; `RemoteConfigurationError` when only some of the three
        are set; and what `connect` and `connect_remote` do.
        """
        from execserver.client.relay.remote_env import remote_args

        variables = os.environ if environ is None else environ
        remote = remote_args(variables, options or ExecServerClientConnectOptions())
        if remote is not None:
            return cls.connect_remote(remote)
        url = variables.get(URL_VARIABLE, "").strip()
        if not url or url.lower() == "none":
            raise InvalidUrl(f"{URL_VARIABLE} names no server: {url!r}")
        return cls.connect(url, options)

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

    def watch_connection(self, on_change: Callable[[bool], None]) -> None:
        """Have `on_change` called with False when the connection is lost, True when it was resumed.

        It must not block.  There is one at a time.
        """
        self._router.on_change = on_change

    @property
    def server_info(self) -> EnvironmentInfo | None:
        """What the server reported about itself in `initialize`; None from servers of the older contract."""
        return self._session.environment_info

    @property
    def extensions(self) -> Extensions:
        """The extensions of this server."""
        return self._session.extensions

    def call(self, method: str, params: object = None, *, timeout: float | None = None) -> object:
        """Call any method with plain JSON values and return its result as such."""
        return msgspec.json.decode(bytes(self._session.request(method, params, timeout=timeout)))

    def close(self) -> None:
        """Kill what still runs, or was perhaps started, and end the connection.  May be called again."""
        if self._session.state is SessionState.OPEN:
            self._launcher.kill(self._options.close_timeout)
        self._session.close()

    def detach(self) -> None:
        """End the connection only: the server keeps the session for a while so that it can be resumed."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: RemotePath = "/",
        env: Mapping[str, str] | None = None,
        env_policy: ExecEnvPolicy | None = None,
        tty: bool = False,
        pipe_stdin: bool = False,
        arg0: str | None = None,
        sandbox: Sandbox = None,
        process_id: str | None = None,
        process_name: str | None = None,
        limits: ResourceLimits | None = None,
        record: str | None = None,
        collect_output: bool = True,
    ) -> RemoteProcess:
        """Start a program and return it.

        With neither `env` nor `env_policy` it inherits the server's environment; `env` alone is its whole
        environment; with a policy, `env` overrides what the policy leaves (wire contract, section 8.1).
        Without `pipe_stdin` or `tty` its input is empty.  With `collect_output` False output is not kept for
        iteration; use it if only the exit counts, or if output is taken with `RemoteProcess.read`.  `limits`
        are what it and all it starts may use at most (an extension of this project's server); with them,
        `RemoteProcess.exited` says how it ended.  With `record` (`output` or `all`) a server with an audit
        log records it.

        Raises `UnsupportedByServer` for limits and records that the server would not see, `RequestFailed`
        when the program cannot be started.  When the connection is lost before the answer, `TransportClosed`
        is raised and the process is killed as soon as there is a connection again.
        """
        params = start_params(
            argv,
            cwd=cwd,
            env=env,
            env_policy=env_policy,
            tty=tty,
            pipe_stdin=pipe_stdin,
            arg0=arg0,
            sandbox=sandbox,
            process_id=process_id,
            process_name=process_name,
            limits=limits,
            record=record,
        )
        require_members(self._session.extensions, params)
        return self._launcher.start(params, collect_output)

    def attach_process(self, process_id: str, after_seq: int = 0) -> RemoteProcess:
        """Return a process of a resumed session, with its events after `after_seq` as far as they are
        retained.

        Raises `InvalidRequestError` when the session has no such process.
        """
        process = RemoteProcess(self._session, self._gate, process_id, sandboxed=True, after_seq=after_seq)
        self._router.processes[process_id] = process
        process.catch_up(self._router.forget_if_finished)
        process.raise_failure()
        return process

    def process_list(self) -> tuple[ProcessListEntry, ...]:
        """Return the processes of the session with what they use (an extension of this project's server)."""
        return self._session.call(PROCESS_LIST, NoParams()).processes

    def started_ahead(self) -> RemoteProcess | None:
        """Return the process that `connect` was asked to start, once.

        None if the server would not understand what it was asked; `start` may ask otherwise then.  Raises
        `InternalError` where it could not start it, and otherwise as `start`.
        """
        return self._launcher.started_ahead()

    def environment_info(self) -> EnvironmentInfo:
        """Return what kind of machine the server runs on."""
        answer = self._session.request(ENVIRONMENT_INFO.name, NoParams())
        return wire.decode(EnvironmentInfo, answer, ENVIRONMENT_INFO.name)

    def environment_status(self) -> EnvironmentStatusResponse:
        """Return whether the machine takes work (servers from 0.169.0 on)."""
        return self._session.call(ENVIRONMENT_STATUS, NoParams())

    def audit_head(self) -> AuditHeadResponse:
        """Return where the server's audit log stands: the number of its records, the digest of the newest.

        Only servers whose `extensions` have `audit_head` know the method.
        """
        from execserver.protocol.own_methods import AUDIT_HEAD  # late: it brings all records about files

        return self._session.call(AUDIT_HEAD, NoParams())

    def environment_sandbox(self) -> EnvironmentSandboxResponse:
        """Return which sandbox back ends work where the server runs, and what blocks the others.

        Only servers whose `extensions` have `environment_sandbox` know the method.
        """
        return self._session.call(ENVIRONMENT_SANDBOX, NoParams())
