"""The sessions of a server and the processes they own (wire contract, section 6.5)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gevent import sleep, spawn

from execserver.access.identity import NOBODY, Identity
from execserver.core.sessions import Attachment, SessionRecord, SessionTable
from execserver.eventloop.delay_queue import DelayQueue
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.uuid_text import version_4
from execserver.services.clients.questions import Questions
from execserver.services.clients.sink import MessageSink
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.services.reporting.observers import Observer, Started, Who
from execserver.services.running.process import Process
from execserver.services.running.process_table import ProcessTable, Retention
from execserver.settings import LIMIT_SETTINGS, Settings

if TYPE_CHECKING:
    from execserver.handover.carrier import Outgoing
    from execserver.handover.records import PackedFileWatch, PackedPorts
    from execserver.resources.hierarchy import Hierarchy
    from execserver.services.file_watches.table import FileWatchTable, WatchTotals
    from execserver.services.launch.shell_snapshots import SessionSnapshots
    from execserver.services.ports.forwarding import Forwarding
    from execserver.services.ports.table import PortTable
    from execserver.services.resources.limiting import Limiter, SessionLimits
    from execserver.services.sessions.kept import KeptSessions

Table = TypeVar("Table", bound=ProcessTable)
_TURNS_TO_LEAVE = 10  # each lets the loop read 256 KiB of what the old connection still has in its socket
_TURN_S = 0.0001  # with 0, gevent runs other greenlets but polls no descriptor


class Session:
    """One session: its record in the session table, its processes, and who opened it."""

    __slots__ = (
        "_file_watches",
        "_ports",
        "_snapshots",
        "client_name",
        "created_at",
        "identity",
        "name",
        "processes",
        "record",
    )

    def __init__(self, record: SessionRecord, processes: ProcessTable, identity: Identity) -> None:
        self.record = record
        self.processes = processes
        self.identity = identity
        self.name: str | None = None
        self.client_name = ""
        self.created_at = time.time()
        self._snapshots: SessionSnapshots | None = None
        self._ports: PortTable | None = None
        self._file_watches: FileWatchTable | None = None

    def pack_ports(self, out: Outgoing) -> PackedPorts | None:
        """Return what the forwarded ports become, None without any."""
        return None if self._ports is None else self._ports.pack(out)

    def pack_file_watches(self) -> list[PackedFileWatch]:
        """Return what the watched folders become."""
        return [] if self._file_watches is None else self._file_watches.pack()

    @property
    def snapshots(self) -> SessionSnapshots:
        """The shell snapshots of the session; few sessions have any."""
        if self._snapshots is None:
            from execserver.services.launch.shell_snapshots import SessionSnapshots

            self._snapshots = SessionSnapshots()
        return self._snapshots

    def ports(self, forwarding: Forwarding) -> PortTable:
        """The forwarded ports of the session; few sessions have any."""
        if self._ports is None:
            from execserver.services.ports.table import PortTable

            self._ports = PortTable(forwarding, self.processes.attachment)
        return self._ports

    def file_watches(self, totals: WatchTotals) -> FileWatchTable:
        """The watched folders of the session; few sessions have any."""
        if self._file_watches is None:
            from execserver.services.file_watches.table import FileWatchTable

            self._file_watches = FileWatchTable(totals, self.processes.attachment)
        return self._file_watches

    def end(self) -> None:
        """End the processes, ports and watches; waits for the zygote."""
        if self._file_watches is not None:
            self._file_watches.close()
        if self._ports is not None:
            self._ports.close()
        self.processes.end()

    @property
    def session_id(self) -> str:
        """The id that the client got from `initialize`."""
        return self.record.session_id

    def attach(self, sink: MessageSink, questions: Questions | None = None) -> None:
        """Send all further notifications, and questions, to a client."""
        self.processes.attachment.sink = sink
        self.processes.attachment.questions = questions


class SessionHost:
    """Opens, resumes, detaches and ends sessions."""

    def __init__(self, spawner: Spawner, settings: Settings, hierarchy: Hierarchy | None = None) -> None:
        """`hierarchy` are the control groups, where those were made before."""
        self._spawner = spawner
        self._settings = settings
        self._table = SessionTable(
            settings.detached_session_ttl_s, settings.max_detached_sessions, lambda: version_4(os.urandom(16))
        )
        self._sessions: dict[str, Session] = {}
        # Two queues for all sessions, not a timer for each process and session: every entry of a queue has
        # the same delay, so they fall due in the order in which they were added.
        self.retention: Retention = DelayQueue(settings.closed_process_retention_s, _forget)
        self.expiry: DelayQueue[str] = DelayQueue(settings.detached_session_ttl_s, self._expire)
        self._kept: KeptSessions | None = None
        self._limiter: Limiter | None = None
        self._hierarchy = hierarchy
        self._limits_all = any(getattr(settings, name) for name in LIMIT_SETTINGS)
        self.observer: Observer | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    @property
    def kept(self) -> KeptSessions:
        """The sessions that stay longer or have names; most servers see none."""
        if self._kept is None:
            self._kept = self._new_kept()
        return self._kept

    def _new_kept(self) -> KeptSessions:
        from execserver.services.sessions.kept import KeptSessions

        return KeptSessions(self._table, self._settings, self._expire)

    @property
    def any_kept(self) -> bool:
        """Whether anybody has asked for a session to be kept or named."""
        return self._kept is not None

    def time_of(self, session: Session) -> float:
        """Return for how many seconds a session stays without a connection."""
        keep_s = session.record.keep_s
        return self._settings.detached_session_ttl_s if keep_s is None else keep_s

    def open(self, identity: Identity = NOBODY) -> Session:
        """Make a new session of this peer, attached to the caller."""
        return self._added(self._table.create(), identity)

    def adopt(self, record: SessionRecord, identity: Identity) -> Session:
        """Take over a session of a server before this one, without its processes."""
        self._table.restore(record)
        return self._added(record, identity)

    def _added(self, record: SessionRecord, identity: Identity) -> Session:
        session = self._new_session(record, identity)
        processes = session.processes
        if self.observer is not None:
            processes.on_start = partial(_told, self.observer, Who(record.session_id, identity))
        self._sessions[record.session_id] = session
        return session

    def _new_session(self, record: SessionRecord, identity: Identity) -> Session:
        return Session(record, self._new_table(ProcessTable), identity)

    def _new_table(self, kind: Callable[..., Table]) -> Table:
        return kind(
            self._spawner,
            self.retention,
            self._settings.retained_output_bytes,
            self._new_limits,
            limits_all=self._limits_all,
        )

    def find(self, session_id: str) -> Session | None:
        """Return a session, attached or not; None for an unknown id."""
        return self._sessions.get(session_id)

    def is_attached(self, session_id: str) -> bool:
        """Return whether a connection holds this session; `resume` waits for its end."""
        session = self._sessions.get(session_id)
        return session is not None and session.record.attachment is Attachment.ATTACHED

    def resume(self, session_id: str, identity: Identity = NOBODY) -> Session:
        """Attach a detached session to the caller; raise what `SessionTable.resume` raises.

        To a peer that did not open it a session is unknown: whoever may do less must not come to processes
        that were started by somebody who may do more.
        A client may come back before the server has read the end of its old connection.  This waits for it,
        for a few turns of the event loop.
        """
        known = self._sessions.get(session_id)
        if known is not None and known.identity != identity:
            raise InvalidRequest(f"unknown session id {session_id}")
        for _ in range(_TURNS_TO_LEAVE):
            session = self._sessions.get(session_id)
            # Look up anew in each turn: the session may have been detached, or ended, meanwhile.
            if session is None or session.record.attachment is not Attachment.ATTACHED:
                break
            sleep(_TURN_S)
        record = self._table.resume(session_id)
        self.expiry.discard(session_id)
        return self._sessions[record.session_id]

    def detach(self, session: Session) -> None:
        """Detach a session whose client is gone: its processes run on, and it can be resumed for a while."""
        session.processes.attachment.sink = session.processes.attachment.questions = None
        if self._kept is not None:
            self._kept.detaching(session)
        # `ended` is what the limit of detached sessions costs: the ones detached longest.
        ended = self._table.detach(session.record, time.monotonic())
        if session.record.keep_s is None:
            self.expiry.add(session.session_id)
        for record in ended:
            self.expiry.discard(record.session_id)
            self._end(record)
        if self._kept is not None:
            self._kept.set_timer()

    def end(self, session: Session) -> None:
        """End a detached session now.  Raises `SessionAlreadyAttached` for another one."""
        self._table.end(session.record)
        self.expiry.discard(session.session_id)
        self._end(session.record)

    def remove_groups(self) -> None:
        """Remove all control groups; called when all processes have ended."""
        if self._limiter is not None:
            self._limiter.close()
        elif self._hierarchy is not None:
            self._hierarchy.close()

    def close(self) -> None:
        """Stop the timers; the owner of the spawner ends the processes."""
        if self._kept is not None:
            self._kept.close()
        self.expiry.close()
        self.retention.close()

    @property
    def limited(self) -> int:
        """How many sessions have had a control group."""
        return 0 if self._limiter is None else self._limiter.sessions

    def count_limited_from(self, sessions: int) -> None:
        """Go on counting behind another server's sessions, whose groups are there."""
        if sessions:
            self._made_limiter().count_from(sessions)

    def _made_limiter(self) -> Limiter:
        from execserver.services.resources.limiting import Limiter  # late: few processes have limits

        if self._limiter is None:
            self._limiter = Limiter(self._settings, self._hierarchy)
        return self._limiter

    def _new_limits(self) -> SessionLimits:
        from execserver.services.resources.limiting import SessionLimits

        return SessionLimits(self._made_limiter())

    def _expire(self, _session_id: str = "") -> None:
        if self._kept is not None:
            self._kept.hold_followed()
        # The table decides by its own times, and may find more than the one session that is due.
        for record in self._table.expire(time.monotonic()):
            self._end(record)

    def _end(self, record: SessionRecord) -> None:
        """Kill the processes of a session, in a greenlet of its own: each kill waits for the zygote."""
        # Removed at once, so that a client that comes back during the kills finds no session.
        session = self._sessions.pop(record.session_id)
        if self._kept is not None:
            self._kept.forget(session)
        spawn(session.end)


def _told(observer: Observer, who: Who, process: Process, spec: SpawnSpec) -> None:
    """Tell an observer of a process that runs, and have it told of its end."""
    process.on_exit = observer.process_exited
    sandboxed = spec.confinement is not None
    observer.process_started(Started(process, who, spec.cwd, sandboxed))


def _forget(item: tuple[ProcessTable, str]) -> None:
    table, process_id = item
    table.forget(process_id)
