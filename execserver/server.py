"""A running server: builds the services, serves a transport, and ends everything in order.

The shutdown is an escalation: no new connections, shutdown notices to the clients, polite signals to all
processes, a grace period, SIGKILL, and the zygote last.  A second signal does not hurry it, since its time is
limited anyway.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING

import gevent
from gevent import spawn
from gevent.event import Event
from gevent.hub import get_hub

from execserver.core.file_handles import FileHandles
from execserver.eventloop.idle_memory import IdleMemory
from execserver.eventloop.signals import END_SIGNALS, on_end_signals
from execserver.handlers import load_handlers
from execserver.handlers.context import Call, ConnectionContext, Services
from execserver.listening import is_loopback
from execserver.log import active_redactor
from execserver.own_process import (
    free_memory,
    return_free_memory,
    settle_collector,
)
from execserver.service_manager import ALIVE, READY, STOPPING, ServiceManager
from execserver.services.clients.sink import MessageSink
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.confinement.stale_masks import StaleMasks
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import SandboxedFiles
from execserver.services.http.service import HttpService, HttpStreams
from execserver.services.launch.spawner import Spawner
from execserver.services.machine.environment import EnvironmentService
from execserver.services.machine.sandbox_report import SandboxReports
from execserver.services.sessions.host import SessionHost
from execserver.services.settling import settle
from execserver.settings import Settings
from execserver.transports.arrival import Arrival
from execserver.transports.connection import connection_over
from execserver.transports.front import Front
from execserver.version import __version__
from execserver.zygote.launch import ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.access.entry import Entry
    from execserver.access.tls import TlsFiles
    from execserver.audit.segments import Segments
    from execserver.egress.rules_file import NetworkRules
    from execserver.eventloop.signals import EndSignals
    from execserver.remote.beginning import Beginning
    from execserver.resources.hierarchy import Hierarchy
    from execserver.services.surviving.parts import Survival
    from execserver.transports.metrics_endpoint import MetricsEndpoint
    from execserver.unix_socket import BoundFile
    from execserver.upgrading.door import UpgradeDoor
    from execserver.upgrading.resuming import TakenOver
    from execserver.upgrading.upgrade import Upgrade

    Classes = tuple[Callable[..., Spawner], Callable[..., SessionHost], Callable[..., ServiceManager]]

_log = logging.getLogger(__name__)

_STDIN, _STDOUT = 0, 1
# After an upgrade clients have waited long enough.
_ZYGOTE_LATER_S = 0.01
_SETTLE_LATER_S = 0.5
_USUAL: Classes = Spawner, SessionHost, ServiceManager


class Server:
    """The services of one server, and the transport it serves."""

    _metrics_sock: socket.socket | None = None
    _upgrade: Upgrade | None = None  # made when somebody asks for it
    _door: UpgradeDoor | None = None

    def __init__(
        self,
        settings: Settings,
        zygote_command: list[bytes],
        doctor_command: list[bytes],
        zygote: ZygoteProcess | None,
        soft_nofile: int,
        inherited: dict[bytes, bytes],
        hierarchy: Hierarchy | None = None,
        network_rules: NetworkRules | None = None,
        survival: Survival | None = None,
    ) -> None:
        """`zygote` is one that runs already, None to have it made later; `hierarchy` are the control groups.

        `network_rules` are what commands may reach, None if that is the clients' affair.  `survival` lets a
        server behind this one go on if this one is killed.
        """
        self._settings = settings
        settle()
        self._stale_masks = StaleMasks(inherited.get(b"XDG_RUNTIME_DIR"))
        self._survival = survival
        spawner, host, manager = _USUAL if survival is None else survival.classes
        clean = self._stale_masks.clean
        self._spawner = spawner(zygote_command, zygote, soft_nofile, settings, clean)
        self._sandbox_reports = SandboxReports(self._spawner, doctor_command, inherited)
        self._sessions = host(self._spawner, settings, hierarchy)
        files = FileService(settings)
        choose = self._sandbox_reports.choose
        shares = bool(settings.inherit_pid_namespace)
        sandbox = SandboxService(
            settings, inherited, choose, choose_for_commands=partial(choose, shares_processes=shares)
        )
        self._services = Services(
            self._sessions,
            files,
            HttpService(settings),
            EnvironmentService(inherited, self._sandbox_reports.answer, settings),
            inherited,
            sandbox,
            SandboxedFiles(files, sandbox, self._spawner.start_worker, settings),
            settings,
        )
        self._services.network_rules = network_rules
        load_handlers()
        self._idle_memory = IdleMemory(return_free_memory, free_memory)
        self._endpoint: MetricsEndpoint | None = None
        self._manager = manager(os.environ)
        self._watchdog: object = None  # the timer of the signs of life, if somebody waits for them
        self._stop = Event()
        self._soft_nofile = soft_nofile

    def be_watched(
        self,
        metrics_sock: socket.socket | None,
        segments: Segments | None,
        *,
        is_required: bool,
        since: str = "",
    ) -> None:
        """Tell metrics and the audit log what happens, each if it is given; before anything is served.

        `since` is `upgraded` or `afterCrash` for a server that goes on with what another one has left.
        """
        from execserver.services.reporting.observers import (  # late: only who asks pays for it
            Observer,
            Observers,
        )

        observers: list[Observer] = []
        self._metrics_sock = metrics_sock
        if metrics_sock is not None:
            from execserver.services.reporting.metrics import ServerMetrics
            from execserver.transports.metrics_endpoint import MetricsEndpoint

            metrics = ServerMetrics(self._gauges)
            metrics.start()
            observers.append(metrics)
            self._endpoint = MetricsEndpoint(metrics_sock, metrics.page)
            self._endpoint.start()
        if segments is not None:
            from execserver.services.reporting.audit import AuditTrail

            trail = AuditTrail(segments, active_redactor(), required=is_required)
            trail.start(
                version=__version__, pid=os.getpid(), uid=os.getuid(), **({since: True} if since else {})
            )
            observers.append(trail)
            self._services.audit = trail
            self._services.sandbox.hide(segments.folder)
        watching = observers[0] if len(observers) == 1 else Observers(*observers)
        self._services.observer = self._sessions.observer = watching

    def _gauges(self) -> dict[str, tuple[str, float]]:
        return {
            "execserver_sessions": ("Sessions, detached ones included", float(len(self._sessions))),
            "execserver_children": (
                "Processes of all kinds, helpers included",
                float(len(self._spawner.live)),
            ),
        }

    def run_websocket(
        self,
        sock: socket.socket,
        entry: Entry | None = None,
        file: BoundFile | None = None,
        taken_over: TakenOver | None = None,
    ) -> int:
        """Serve a listening socket until a signal; return the exit status.

        `entry` None asks nobody; `file` is the socket's, if it has one.  With `taken_over` the server goes on
        with all that another program has left in this process.
        """
        from execserver.transports.door import Door  # late: a server on stdio needs neither
        from execserver.transports.listener import WebSocketListener

        arrival = None if entry is None or entry.tls is None else self._tls_arrival(entry.tls)
        signals = on_end_signals(self._stop.set, self._end_signals(spared=arrival is not None))
        if sock.family != socket.AF_UNIX:
            self._services.own_address = sock.getsockname()[:2]
        door = Door(None if entry is None else entry.authenticator, loopback=is_loopback(sock))
        listener = WebSocketListener(sock, self._settings, self._call, door, arrival)
        if taken_over is not None:
            taken_over.take(
                self._spawner, self._services, listener, None if entry is None else entry.authenticator
            )
        if self._survival is not None:
            self._survival.publish(sock, self._metrics_sock, file, self._soft_nofile)
        listener.start()
        if entry is not None and entry.begin is not None:
            spawn(entry.begin)
        self._sandbox_reports.start()
        spawn(self._stale_masks.clean)
        if taken_over is None:
            self._settle()
        front = Front(listener.open, lambda out: listener.pack(out, file))
        self._be_upgradable(partial(self._made_upgrade, front, signals))
        self._serve_until_stopped(taken_over, signals)
        listener.close()
        self._end()
        return 0

    def _serve_until_stopped(self, taken_over: TakenOver | None, signals: EndSignals) -> None:
        """Say that clients are served, and wait for the end; from then on nobody asks for an upgrade."""
        self._ready()
        if taken_over is not None:
            self._taken_over(taken_over, signals)
        self._stop.wait()
        if self._door is not None:
            self._door.close()

    def _end_signals(self, *, spared: bool = False) -> tuple[signal.Signals, ...]:
        """Return the signals that end the server: SIGHUP not, if it is `spared` or means an upgrade."""
        return END_SIGNALS[:2] if spared or self._settings.upgrade_on_hup else END_SIGNALS

    def _be_upgradable(self, upgrade: Callable[[], Upgrade]) -> None:
        """Let the server's user put another program in its place."""
        from execserver.upgrading.door import UpgradeDoor

        if self._settings.upgrade_on_hup:
            gevent.signal_handler(signal.SIGHUP, lambda: upgrade().run_own("SIGHUP"))
        try:
            self._door = UpgradeDoor(upgrade)
        except OSError as error:
            _log.warning("execserver upgrade cannot reach this server: %s", error)

    def _made_upgrade(self, front: Front, signals: EndSignals) -> Upgrade:
        """Return the way to another program, loaded when somebody asks for it."""
        from execserver.upgrading.server_state import Parts, ServerState
        from execserver.upgrading.upgrade import Upgrade

        if self._upgrade is None:
            parts = Parts(
                *(front, self._spawner, self._services, self._manager),
                *(self._soft_nofile, self._metrics_sock),
            )
            why_not = "" if self._survival is None else self._survival.WHY_NOT_UPGRADED
            self._upgrade = Upgrade(ServerState(parts), signals, self._stop.is_set, why_not=why_not)
        return self._upgrade

    def _taken_over(self, taken_over: TakenOver, signals: EndSignals) -> None:
        """Serve, and see to what can come behind the pause."""
        from execserver.services.sessions import handover as session_handover  # loaded by then

        taken_over.finish(signals)
        gevent.spawn_later(_ZYGOTE_LATER_S, self._spawner.prepare)
        gevent.spawn_later(_SETTLE_LATER_S, self._settle)
        gevent.spawn_later(_SETTLE_LATER_S, session_handover.load_output, self._sessions)

    def _tls_arrival(self, files: TlsFiles) -> Arrival:
        """Return the way connections with TLS arrive; SIGHUP reads its files again."""
        from execserver.transports.tls_arrival import TlsArrival  # late: only TLS pays for it

        arrival = TlsArrival(files, self._settings)
        if not self._settings.upgrade_on_hup:  # the new program reads them, too
            gevent.signal_handler(signal.SIGHUP, arrival.reload)
        return arrival

    def run_stdio(self) -> int:
        """Serve stdin and stdout until the input ends or a signal comes; return the exit status."""
        from execserver.transports.stdio import StdioTransport

        on_end_signals(self._stop.set)
        transport = StdioTransport(_STDIN, _STDOUT, self._settings)
        connection = connection_over(transport, self._call(transport.outbox))
        transport.done.rawlink(lambda _: self._stop.set())
        transport.start(connection)
        self._sandbox_reports.start()
        spawn(self._stale_masks.clean)
        self._settle_memory()
        self._ready()
        self._stop.wait()
        if transport.done.is_set():  # the input ended: what was received before is still handled
            connection.join(self._settings.close_timeout_s)
        transport.outbox.wait_until_empty(self._settings.close_timeout_s)
        self._end()
        transport.restore()
        return 0

    def run_remote(self, beginning: Beginning, taken_over: TakenOver | None = None) -> int:
        """Serve as a remote environment until a signal; return the exit status.

        With `taken_over` the server goes on with all that another program has left in this process.  Raises
        RemoteError when that cannot go on; everything has ended then.
        """
        from execserver.remote.serving import RemoteServing  # late: only remote mode pays for it
        from execserver.remote.stdin_input import CredentialInput

        self._stop, stdin = beginning.stop, beginning.stdin
        serving = RemoteServing(beginning, self._settings, self._remote_call)
        signals = on_end_signals(
            self._stop.set, self._end_signals() if serving.may_be_handed_over else END_SIGNALS
        )
        if taken_over is not None:
            taken_over.take_sessions(self._spawner, self._services)
        self._sandbox_reports.start()
        worker = spawn(serving.run, self._stop.set)
        spawn(self._stale_masks.clean)
        if taken_over is None:
            self._settle_memory()
        if serving.may_be_handed_over:
            front = Front(serving.open, serving.pack)
            self._be_upgradable(partial(self._made_upgrade, front, signals))
        self._serve_until_stopped(taken_over, signals)
        if stdin is not None:
            stdin.close()
        serving.close()
        worker.kill()
        self._end()
        if isinstance(stdin, CredentialInput) and stdin.failure is not None:
            raise stdin.failure
        if serving.failure is not None:
            raise serving.failure
        return 0

    def _call(self, outbox: MessageSink) -> Call:
        streams = HttpStreams(self._services.http, outbox)
        connection = ConnectionContext(outbox, streams, FileHandles(self._services.filesystem.release))
        connection.concurrent_requests = self._settings.concurrent_requests
        return Call(connection, self._services)

    def _remote_call(self, outbox: MessageSink) -> Call:
        call = self._call(outbox)
        call.connection.bounded_messages = True
        return call

    def _ready(self) -> None:
        """Take SIGHUP, tell a service manager that all is up, and from now on that the event loop turns."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # held since the server was announced
        if self._survival is not None:  # before anybody hears of it, who may kill the server
            self._survival.ready(self._stop.set)
        self._manager.tell(READY)
        if self._manager.watchdog_s:
            self._watchdog = timer = get_hub().loop.timer(self._manager.watchdog_s, self._manager.watchdog_s)
            timer.start(self._manager.tell, ALIVE)

    def _settle(self) -> None:
        """Load what is needed seldom, while descriptors for it are left, and then see to the memory."""
        import execserver.wire.server_protocol  # noqa: F401

        gc.enable()  # off since an upgrade
        self._settle_memory()

    def _settle_memory(self) -> None:
        settle_collector()
        self._idle_memory.start()

    def _end(self) -> None:
        _log.info("ending all processes")
        self._manager.tell(STOPPING)
        if self._endpoint is not None:
            self._endpoint.close()
        ends = [self._services.audit.close] if self._services.audit is not None else []
        self._idle_memory.close()
        self._sandbox_reports.close()
        self._sessions.close()
        self._services.sandboxed_files.close()
        self._services.filesystem.close()
        self._services.sandbox.close()
        # Last: killing the file workers above takes a zygote that still listens.
        self._spawner.shutdown(self._settings.shutdown_grace_s)
        self._sessions.remove_groups()
        for end in ends:  # behind the ends of all processes
            end()
