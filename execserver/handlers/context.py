"""What a handler can use: its connection, its session and the services of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.access.identity import NOBODY
from execserver.core.connection import ConnectionRules
from execserver.core.file_handles import FileHandles
from execserver.eventloop.busy_poll import BusyPoll
from execserver.protocol.errors import InvalidRequest
from execserver.services.clients.questions import Questions
from execserver.services.clients.sink import MessageSink
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import SandboxedFiles
from execserver.services.http.service import HttpService, HttpStreams
from execserver.services.machine.environment import EnvironmentService
from execserver.services.sessions.host import Session, SessionHost

if TYPE_CHECKING:
    from execserver.egress.rules_file import NetworkRules
    from execserver.services.discovery.service import Discovery
    from execserver.services.egress.service import EgressService
    from execserver.services.file_watches.missing import ConnectionWatch, MissingWatches
    from execserver.services.file_watches.table import WatchTotals
    from execserver.services.ports.forwarding import Forwarding
    from execserver.services.reporting.audit import AuditTrail
    from execserver.services.reporting.observers import Observer
    from execserver.settings import Settings


class Services:
    """The services of one server, shared by all connections."""

    __slots__ = (
        *(
            "_discovery",
            "_egress",
            "_forwarding",
            "_settings",
            "_watch_totals",
            "_watches",
            "environment",
            "filesystem",
            "http",
            "inherited",
            "sandbox",
            "sandboxed_files",
        ),
        *("audit", "busy_poll", "network_rules", "observer", "own_address", "sessions"),
    )

    def __init__(
        self,
        sessions: SessionHost,
        filesystem: FileService,
        http: HttpService,
        environment: EnvironmentService,
        inherited: dict[bytes, bytes],
        sandbox: SandboxService,
        sandboxed_files: SandboxedFiles,
        settings: Settings,
    ) -> None:
        self.sessions = sessions
        self.filesystem = filesystem
        self.http = http
        self.environment = environment
        self.sandbox = sandbox
        self.sandboxed_files = sandboxed_files
        self.busy_poll = BusyPoll(settings.busy_poll_s)
        self.inherited = inherited  # the environment the server was started with, for envPolicy
        self.own_address: tuple[str, int] | None = None  # where the server listens, if it does
        self.audit: AuditTrail | None = None  # where a log is written
        self.network_rules: NetworkRules | None = None  # what commands may reach, whatever clients say
        self.observer: Observer | None = None  # is told what happens, where somebody asked for it
        self._settings = settings
        self._forwarding: Forwarding | None = None
        self._egress: EgressService | None = None
        self._watches: MissingWatches | None = None
        self._watch_totals: WatchTotals | None = None
        self._discovery: Discovery | None = None

    @property
    def passes_trace(self) -> bool:
        """True if a process goes on with the trace of the request that starts it."""
        return bool(self._settings.pass_trace)

    @property
    def survives_crash(self) -> bool:
        """Whether all that is started must outlive this server."""
        return bool(self._settings.survive_crash)

    @property
    def forwarding(self) -> Forwarding:
        """Where forwarded ports may lead; loaded by the first of them."""
        if self._forwarding is None:
            from execserver.services.ports.forwarding import Forwarding

            self._forwarding = Forwarding(self._settings, self.own_address)
        return self._forwarding

    @property
    def egress(self) -> EgressService:
        """What the network proxies of processes share; loaded by the first of them."""
        if self._egress is None:
            from execserver.services.egress.service import EgressService

            self._egress = EgressService(self._settings, self.inherited, self.own_address)
        return self._egress

    @property
    def watch_totals(self) -> WatchTotals:
        """What all sessions watch; loaded by the first watch."""
        if self._watch_totals is None:
            from execserver.services.file_watches.table import WatchTotals

            self._watch_totals = WatchTotals()
        return self._watch_totals

    def discovery(self) -> Discovery:
        """Return what finds plugins and skills; loaded by the first call."""
        from execserver.services.discovery.service import Discovery

        if self._discovery is None:
            self._discovery = Discovery(self.filesystem, self.inherited)
        return self._discovery

    def watch_for(self, sink: MessageSink) -> ConnectionWatch:
        """Return a new watch of missing paths, which tells a connection."""
        from execserver.services.file_watches.missing import ConnectionWatch, MissingWatches

        if self._watches is None:
            self._watches = MissingWatches(self.filesystem)
        return ConnectionWatch(self._watches, self.filesystem, sink)


class ConnectionContext:
    """What belongs to one connection, and ends with it."""

    __slots__ = (
        "bounded_messages",
        "client_name",
        "concurrent_requests",
        "handles",
        "http_streams",
        "identity",
        "questions",
        "rules",
        "sink",
        "watch",
    )

    def __init__(self, sink: MessageSink, http_streams: HttpStreams, handles: FileHandles) -> None:
        self.sink = sink
        self.bounded_messages = False  # True if a message that is too long would end the connection
        self.client_name = ""
        self.concurrent_requests = 0  # worked on at a time; 0: one, and those that wait delay no other
        self.identity = NOBODY  # who is at the other end, as the listener has proven it
        self.questions = Questions(sink)
        self.rules = ConnectionRules()
        self.http_streams = http_streams
        self.handles = handles
        self.watch: ConnectionWatch | None = None  # made by the first request for one

    def close(self) -> None:
        """Close open files, end running body streams, questions and the watch of missing paths."""
        self.questions.close()
        if self.watch is not None:
            self.watch.close()
        self.http_streams.close()
        self.handles.close_all()


class Call:
    """The context of all requests of one connection."""

    __slots__ = ("_holds_session", "_session", "connection", "services")

    def __init__(self, connection: ConnectionContext, services: Services) -> None:
        self.connection = connection
        self.services = services
        self._session: Session | None = None
        self._holds_session = False

    @property
    def session(self) -> Session:
        """The session; raises InvalidRequest before `initialize` has succeeded."""
        if self._session is None:
            raise InvalidRequest("client must call initialize before using exec methods")
        return self._session

    @property
    def session_id(self) -> str:
        """The id of the session; empty before there is one."""
        return "" if self._session is None else self._session.session_id

    def is_over(self) -> bool:
        """Return whether the client is gone, and may go on with its session over another connection."""
        return not self._holds_session

    def take_session(self, session: Session) -> None:
        """Bind the connection to its session."""
        self._session = session
        self._holds_session = True

    def detach(self) -> None:
        """Detach the session, if this connection holds it; requests received before still reach it."""
        # `_session` stays, since they are handled after this.
        if self._session is not None and self._holds_session:
            self._holds_session = False
            self.services.sessions.detach(self._session)
