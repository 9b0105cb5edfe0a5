"""A running shell tool: the services behind its calls, its one client, and how all of it ends.

The end is the same whatever causes it, the end of the input, a closed stdout or a signal: no further calls,
those that run are ended, what is answered already is sent, and the zygote goes last.
"""

from __future__ import annotations

import logging

import gevent
from gevent import spawn
from gevent.event import Event

from execserver.eventloop.idle_memory import IdleMemory
from execserver.eventloop.signals import on_end_signals
from execserver.mcp.call import ShellCalls, ShellOptions
from execserver.mcp.interception import Interception
from execserver.mcp.lines import BoundedLines
from execserver.mcp.server import ShellToolServer
from execserver.own_process import (
    free_memory,
    raise_open_files_limit,
    return_free_memory,
    settle_allocator,
    settle_collector,
)
from execserver.rules.policy import Policy
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.confinement.stale_masks import StaleMasks
from execserver.services.launch.spawner import Spawner
from execserver.services.machine.sandbox_report import SandboxReports
from execserver.settings import Settings
from execserver.transports.stdio import StdioTransport
from execserver.version import __version__
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.libc import Libc

_log = logging.getLogger(__name__)

MAX_LINE_BYTES = 16 * 1024 * 1024  # a command is at most 2 MiB long, or the kernel refuses to start it
_STDIN, _STDOUT = 0, 1
_GREETING_S = 0.02  # the client that started this program waits for its answer first
_LAST_WORDS_S = 1.0  # for a client that reads slowly; one that does not read delays the end by twice as much


class Host:
    """The services of one shell tool, and the client on its stdin and stdout."""

    def __init__(
        self,
        settings: Settings,
        zygote_command: list[bytes],
        doctor_command: list[bytes],
        zygote: ZygoteProcess,
        soft_nofile: int,
        shell: ShellOptions,
        policy: Policy,
        interception: Interception,
    ) -> None:
        self._settings = settings
        gevent.config.track_greenlet_tree = False  # costs time at each spawn, and nothing uses it
        Libc().set_undumpable()  # commands must not read this process's memory or environment from /proc
        raise_open_files_limit()
        inherited = shell.inherited
        self._stale_masks = StaleMasks(inherited.get(b"XDG_RUNTIME_DIR"))
        self._spawner = Spawner(zygote_command, zygote, soft_nofile, settings, self._stale_masks.clean)
        self._reports = SandboxReports(self._spawner, doctor_command, inherited)
        self._sandbox = SandboxService(settings, inherited, self._reports.choose)
        egress = None
        if shell.network_rules is not None:
            from execserver.services.egress.service import EgressService  # late: most servers have no rules

            egress = EgressService(settings, inherited, None)
        self._calls = ShellCalls(
            self._spawner, self._sandbox, policy, shell, lambda: interception.way, egress
        )
        if interception.reason:
            _log.info("programs are noticed through the wrapper only: %s", interception.reason)
        elif isinstance(interception.way, str):
            _log.warning("no command can be run: %s", interception.way)
        self._idle_memory = IdleMemory(return_free_memory, free_memory)
        self._stop = Event()

    def serve(self) -> str | None:
        """Serve until the conversation is over or a signal comes; return what was wrong with it, or None."""
        on_end_signals(self._stop.set)
        lines = BoundedLines(min(MAX_LINE_BYTES, self._settings.max_message_bytes))
        transport = StdioTransport(_STDIN, _STDOUT, self._settings, lines)
        server = ShellToolServer(transport, __version__, self._calls.run)
        worker = spawn(server.serve)
        worker.rawlink(lambda _: self._stop.set())
        transport.done.rawlink(lambda _: self._stop.set())
        transport.start(server)
        self._reports.start(_GREETING_S)  # the first call needs the report
        gevent.spawn_later(_GREETING_S, self._stale_masks.clean)
        gevent.spawn_later(_GREETING_S, self._settle_memory)
        self._stop.wait()
        closing = spawn(server.close, self._settings.shutdown_grace_s)
        if transport.done.is_set():
            worker.join(_LAST_WORDS_S)  # lines received before the end are still handled
        closing.join()
        transport.outbox.wait_until_empty(_LAST_WORDS_S)
        self._end()
        transport.restore()
        if worker.ready() and not worker.successful():
            return "internal error"  # the log has the details
        return worker.value if isinstance(worker.value, str) else None

    def _settle_memory(self) -> None:
        settle_allocator()
        settle_collector()
        self._idle_memory.start()

    def _end(self) -> None:
        _log.info("ending all processes")
        self._idle_memory.close()
        self._reports.close()
        self._sandbox.close()
        self._spawner.shutdown(self._settings.shutdown_grace_s)
