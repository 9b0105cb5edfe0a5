"""The sessions of a server with the processes they own (wire contract, section 6.5)."""

from __future__ import annotations

import time
import uuid

from gevent import sleep, spawn

from execserver.core.sessions import Attachment, SessionRecord, SessionTable
from execserver.services.delay_queue import DelayQueue
from execserver.services.process_table import ProcessTable, Retention
from execserver.services.sink import MessageSink
from execserver.services.spawner import Spawner
from execserver.settings import Settings

_TURNS_TO_LEAVE = 10  # each reads a quarter of a megabyte that is left from the old connection
_TURN_S = 0.0001  # not 0: that gives others a turn, but looks at no descriptor


class Session:
    """One session: its record and its processes."""

    __slots__ = ("processes", "record")

    def __init__(self, record: SessionRecord, processes: ProcessTable) -> None:
        self.record = record
        self.processes = processes

    @property
    def session_id(self) -> str:
        """The id that the client knows."""
        return self.record.session_id

    def attach(self, sink: MessageSink) -> None:
        """Let notifications flow to a client, from now on."""
        self.processes.attachment.sink = sink


class SessionHost:
    """Opens, resumes, detaches and ends sessions."""

    def __init__(self, spawner: Spawner, settings: Settings) -> None:
        self._spawner = spawner
        self._settings = settings
        self._table = SessionTable(
            settings.detached_session_ttl_s, settings.max_detached_sessions, lambda: str(uuid.uuid4())
        )
        self._sessions: dict[str, Session] = {}
        self._retention: Retention = DelayQueue(settings.closed_process_retention_s, _forget)
        self._expiry: DelayQueue[str] = DelayQueue(settings.detached_session_ttl_s, self._expire)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> Session:
        """Make a new session, held by the caller."""
        record = self._table.create()
        processes = ProcessTable(self._spawner, self._retention, self._settings.retained_output_bytes)
        session = Session(record, processes)
        self._sessions[record.session_id] = session
        return session

    def resume(self, session_id: str) -> Session:
        """Take a detached session; raises as `SessionTable.resume` does.

        A client may be back before the end of its old connection was looked at: that is waited for, a few
        turns of the event loop.
        """
        for _ in range(_TURNS_TO_LEAVE):
            session = self._sessions.get(session_id)
            if session is None or session.record.attachment is not Attachment.ATTACHED:
                break
            sleep(_TURN_S)
        record = self._table.resume(session_id)
        self._expiry.discard(session_id)
        return self._sessions[record.session_id]

    def detach(self, session: Session) -> None:
        """Note that the client is gone: processes run on, and the session can be resumed for a while."""
        session.processes.attachment.sink = None
        ended = self._table.detach(session.record, time.monotonic())
        self._expiry.add(session.session_id)
        for record in ended:
            self._expiry.discard(record.session_id)
            self._end(record)

    def close(self) -> None:
        """Stop the clocks; the processes are ended by whoever owns the spawner."""
        self._expiry.close()
        self._retention.close()

    def _expire(self, _session_id: str) -> None:
        for record in self._table.expire(time.monotonic()):
            self._end(record)

    def _end(self, record: SessionRecord) -> None:
        """Kill the processes of a session, beside the event loop: that waits for the zygote."""
        spawn(self._sessions.pop(record.session_id).processes.end)


def _forget(item: tuple[ProcessTable, str]) -> None:
    table, process_id = item
    table.forget(process_id)
