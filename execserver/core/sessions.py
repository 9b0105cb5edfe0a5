"""Sessions: which connection holds one, who may resume it, when it ends (wire contract, section 6.5).

attached <--> detached --> ended.  A session is attached to at most one connection.  When that connection
ends, the session is detached and can be resumed for a limited time; each detach starts that time anew.  Times
are arguments, in seconds of any monotonic clock.

At the limit of detached sessions the one that would end first ends early, so a client that connects and
leaves in a loop cannot fill the memory.  A kept session has a time of its own: it neither counts there nor
ends early, and its owner bounds how many there are.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import islice

from execserver.protocol.errors import InvalidRequest, SessionAlreadyAttached


class Attachment(enum.Enum):
    """Whether a connection holds the session."""

    ATTACHED = enum.auto()
    DETACHED = enum.auto()
    ENDED = enum.auto()


class SessionRecord:
    """The state of one session.

    `keep_s` is None for the time of all sessions, else the seconds of this one; with 0 it ends when it is
    detached.
    """

    __slots__ = ("attachment", "expires_at", "keep_s", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.attachment = Attachment.ATTACHED
        self.expires_at = 0.0
        self.keep_s: float | None = None


class SessionTable:
    """All sessions of one server."""

    def __init__(self, ttl_s: float, max_detached: int, new_id: Callable[[], str]) -> None:
        self._ttl_s = ttl_s
        self._max_detached = max_detached
        self._new_id = new_id
        self._records: dict[str, SessionRecord] = {}
        # In the order in which they will end: `ttl_s` is the same for all, and a dict keeps its order.
        self._detached: dict[str, SessionRecord] = {}
        self._kept: dict[str, SessionRecord] = {}  # detached, too, in no order

    def __len__(self) -> int:
        return len(self._records)

    def create(self) -> SessionRecord:
        """Make a session and attach it to the caller."""
        record = SessionRecord(self._new_id())
        self._records[record.session_id] = record
        return record

    def restore(self, record: SessionRecord) -> None:
        """Take in a session of another table, in the order in which the detached ones end."""
        self._records[record.session_id] = record
        if record.attachment is Attachment.DETACHED:
            waiting = self._detached if record.keep_s is None else self._kept
            waiting[record.session_id] = record

    def resume(self, session_id: str) -> SessionRecord:
        """Attach a detached session to the caller.

        Raises `InvalidRequest` for an id that is unknown or whose session has ended, `SessionAlreadyAttached`
        while another connection holds it.
        """
        record = self._records.get(session_id)
        if record is None:
            raise InvalidRequest(f"unknown session id {session_id}")
        # The newcomer does not take over: the reference server answers -32010, which clients retry.
        if record.attachment is Attachment.ATTACHED:
            raise SessionAlreadyAttached(session_id)
        self._leave(record)
        record.attachment = Attachment.ATTACHED
        return record

    def detach(self, record: SessionRecord, now: float) -> list[SessionRecord]:
        """Start the time in which `record` can be resumed; return the sessions that the limit ended.

        The caller kills the processes of those sessions.  Raises ValueError if `record` is not attached.
        """
        if record.attachment is not Attachment.ATTACHED:
            raise ValueError(f"session {record.session_id} is {record.attachment.name.lower()}")
        record.attachment = Attachment.DETACHED
        if record.keep_s is not None:
            record.expires_at = now + record.keep_s
            self._kept[record.session_id] = record
            return [] if record.keep_s else [self._end(record)]
        record.expires_at = now + self._ttl_s
        # `resume` removed an earlier entry, so this one goes to the end of the order.
        self._detached[record.session_id] = record
        surplus = max(0, len(self._detached) - self._max_detached)
        # `islice`: a copy of all detached sessions for each disconnect would cost more than the disconnect.
        return [self._end(victim) for victim in list(islice(self._detached.values(), surplus))]

    def expire(self, now: float) -> list[SessionRecord]:
        """End the sessions whose time is over and return them."""
        over = []
        for record in self._detached.values():
            if record.expires_at > now:
                break  # all behind it end later
            over.append(record)
        over += [record for record in self._kept.values() if record.expires_at <= now]
        return [self._end(record) for record in over]

    def begin_anew(self, record: SessionRecord, now: float) -> None:
        """Start the time of a kept session anew, if it is detached: somebody uses it who does not hold it."""
        if record.session_id in self._kept and record.keep_s is not None:
            record.expires_at = now + record.keep_s

    def next_kept_end(self) -> float | None:
        """Return when the first of the detached kept sessions is over; None without one."""
        return min((record.expires_at for record in self._kept.values()), default=None)

    def end(self, record: SessionRecord) -> None:
        """End a detached session.  Raises `SessionAlreadyAttached` for another one."""
        if record.attachment is Attachment.ATTACHED:
            raise SessionAlreadyAttached(record.session_id)
        if record.attachment is Attachment.DETACHED:
            self._end(record)

    def _leave(self, record: SessionRecord) -> None:
        # From wherever it is: its time may have changed between its detach and now.
        self._detached.pop(record.session_id, None)
        self._kept.pop(record.session_id, None)

    def _end(self, record: SessionRecord) -> SessionRecord:
        # Only detached sessions end: whoever holds one keeps it, however many there are.
        record.attachment = Attachment.ENDED
        self._leave(record)
        del self._records[record.session_id]
        return record
