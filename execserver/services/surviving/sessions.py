"""Sessions and process tables that note what a server behind this one must know."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from execserver.access import handed_over
from execserver.access.identity import Identity
from execserver.core import spawn_errors
from execserver.core.process_state import ProcessState
from execserver.core.sessions import SessionRecord
from execserver.handover.records import PackedSession
from execserver.protocol.errors import InvalidRequest
from execserver.services.clients.questions import Questions
from execserver.services.clients.sink import MessageSink
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import SpawnSpec
from execserver.services.running.process import Process
from execserver.services.running.process_roles import Templates
from execserver.services.running.process_table import ProcessTable
from execserver.services.sessions.host import Session, SessionHost
from execserver.services.sessions.kept import KeptSessions
from execserver.services.surviving.process import SurvivingProcess, SurvivingState
from execserver.survival.ledger import SESSION
from execserver.survival.process_journal import ProcessJournal
from execserver.survival.recovery import Recovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.core.output_log import OutputLog
    from execserver.handover.carrier import Incoming
    from execserver.handover.records import PackedProcess
    from execserver.protocol.resource_limits import ResourceLimits
    from execserver.services.resources.account import Account
    from execserver.services.running.spool import Spool
    from execserver.survival.keeping import Keeping


class SurvivingTable(ProcessTable):
    """The processes of one session, each with a journal."""

    state_class = SurvivingState

    def __init__(self, keeping: Keeping, session_id: str, *table: Any, **more: Any) -> None:
        super().__init__(*table, **more)
        self._keeping = keeping
        self._session_id = session_id
        self._input: tuple[int, int] | None = None  # of the process that is being unpacked

    def _spawned(self, spec: SpawnSpec, limits: ResourceLimits | None) -> tuple[Child, Account | None]:
        if limits is not None:
            raise InvalidRequest("limits do not survive a crash, so --survive-crash has none")
        if not self._keeping.has_room:
            raise InvalidRequest("--survive-crash can keep no further process here")
        return super()._spawned(spec, limits)

    def _new_process(
        self, process_id: str, templates: Templates, argv: list[str], state: ProcessState, child: Child
    ) -> Process:
        known, self._input = self._input, None
        file, end = known or (-1, 0)
        try:
            journal = ProcessJournal(self._keeping, is_terminal=state.tty, input_file=file, input_end=end)
        except OSError as error:
            if known is None:
                child.kill_group()
                for fd in {fd for fd in (child.stdin_fd, *dict(child.outputs).values()) if fd is not None}:
                    os.close(fd)
            raise spawn_errors.os_failure(error.errno or errno.EIO) from None
        closed = partial(self._closed, process_id)
        return SurvivingProcess(
            self._session_id, journal, templates, argv, state, child, self.attachment, closed
        )

    def _unpack_one(
        self, packed: PackedProcess, incoming: Incoming, spool: Callable[[OutputLog], Spool]
    ) -> None:
        assert isinstance(incoming, Recovered)
        self._input = incoming.input_of(self._session_id, packed.process_id)
        super()._unpack_one(packed, incoming, spool)


class SurvivingSession(Session):
    """A session that is noted when somebody takes it."""

    __slots__ = ("_note",)

    def __init__(
        self,
        record: SessionRecord,
        processes: ProcessTable,
        identity: Identity,
        note: Callable[[Session], None],
    ) -> None:
        super().__init__(record, processes, identity)
        self._note = note

    def attach(self, sink: MessageSink, questions: Questions | None = None) -> None:
        """See `Session`."""
        self._note(self)  # before the answer leaves, so whoever knows the session finds it again
        super().attach(sink, questions)


class SurvivingKept(KeptSessions):
    """Kept sessions whose terms are noted."""

    note: Callable[[Session], None]

    def keep(self, session: Session, keep_ms: int | None, name: str | None) -> None:
        """See `KeptSessions`."""
        super().keep(session, keep_ms, name)
        self.note(session)

    def detaching(self, session: Session) -> None:
        """See `KeptSessions`."""
        super().detaching(session)
        self.note(session)


class SurvivingSessions(SessionHost):
    """The sessions of a server that may be killed."""

    def __init__(self, keeping: Keeping, *host: Any) -> None:
        self._keeping = keeping
        super().__init__(*host)

    def note(self, session: Session) -> None:
        """Write down what is known of a session besides its processes."""
        packed = PackedSession(
            session_id=session.session_id,
            is_attached=False,
            keep_s=session.record.keep_s,
            expires_at=0.0,
            is_kept=self.any_kept and self.kept.is_kept(session.session_id),
            has_spools=False,
            closed=session.processes.closed,
            knows_watchers=session.processes.attachment.knows_watchers,
            identity=handed_over.pack(session.identity),
            name=session.name,
            client_name=session.client_name,
            created_at=session.created_at,
            processes=[],
            limits=None,
            watches=[],
            ports=None,
            file_watches=[],
        )
        self._keeping.ledger.put(SESSION + session.session_id.encode(), msgspec.msgpack.encode(packed))

    def _new_session(self, record: SessionRecord, identity: Identity) -> Session:
        kind = partial(SurvivingTable, self._keeping, record.session_id)
        return SurvivingSession(record, self._new_table(kind), identity, self.note)

    def _new_kept(self) -> KeptSessions:
        kept = SurvivingKept(self._table, self._settings, self._expire)
        kept.note = self.note
        return kept

    def _end(self, record: SessionRecord) -> None:
        self._keeping.ledger.drop(SESSION + record.session_id.encode())
        super()._end(record)
