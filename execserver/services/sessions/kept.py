"""Sessions that stay longer than the contract's time, or have a name, because their clients asked.

Only such sessions can be seen from outside, and only by the peer that made them: proven to be the same, with
the same grant.  A client of the contract asks for nothing, so nobody finds its sessions.  Their number is
limited; at the limit a further one is refused, since others rely on theirs.  A kept session of a token that
is over does not outlive the contract's time.

A kept session in which another client watches a running process is not left alone: its time begins when that
client leaves.  Only one that is connected counts, so two sessions do not keep each other for ever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gevent.hub import get_hub

from execserver.access.identity import Identity
from execserver.core.output_log import OutputLog
from execserver.core.sessions import Attachment, SessionTable
from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.session import KeptSession
from execserver.services.running.process import Process
from execserver.services.running.spool import Spool, SpoolBudget, spooled
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.services.sessions.host import Session

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_TOKENS_LOOKED_AT_S: Final = 60.0


def check_name(name: str, what: str) -> None:
    """Raise InvalidParams for what is no name of a session or process; `what` names the member."""
    if not _NAME.fullmatch(name):
        raise InvalidParams(f"{what} must be 1 to 64 letters, digits, dots, dashes or underscores")


class KeptSessions:
    """The kept and the named sessions of one server, and when they end."""

    def __init__(self, table: SessionTable, settings: Settings, expire: Callable[[], None]) -> None:
        self._table = table
        self._settings = settings
        self._expire = expire
        self._sessions: dict[str, Session] = {}
        self._names: set[tuple[Identity, str]] = set()  # of processes that are being started
        self._timer = get_hub().loop.timer(0.0)
        self._budget = SpoolBudget(settings.spools_bytes)

    def keep(self, session: Session, keep_ms: int | None, name: str | None) -> None:
        """Set how long a session stays (None: as it is) and its name; 0 ends it with its connection.

        Raises InvalidParams for what is no name, InvalidRequest for one in use or one session too many.
        """
        if name is not None:
            check_name(name, "sessionName")
            if any(one.name == name and one is not session for one in self.of(session.identity)):
                raise InvalidRequest(f"session name {name} is already in use")
        if (
            session.session_id not in self._sessions
            and len(self._sessions) >= self._settings.max_kept_sessions
        ):
            raise InvalidRequest(f"at most {self._settings.max_kept_sessions} sessions are kept")
        self._sessions[session.session_id] = session
        session.name = name or session.name
        session.processes.attachment.knows_watchers = True
        if keep_ms is not None:
            self._set_time(session, keep_ms)

    def _set_time(self, session: Session, keep_ms: int) -> None:
        usual = self._settings.detached_session_ttl_s
        granted = min(keep_ms / 1000, self._settings.keep_max_s)
        session.record.keep_s = 0.0 if keep_ms == 0 else granted if granted > usual else None
        if session.record.keep_s:
            session.processes.keep_closed(self.spooled if self._settings.spool_bytes else None)

    def spooled(self, log: OutputLog) -> Spool:
        """Return a new spool of a process's log."""
        return spooled(log, self._settings.spool_bytes, self._budget)

    def keep_again(self, session: Session, closed: list[str] | None, *, has_spools: bool) -> None:
        """Take in a session that another server has kept, with its closed processes, oldest first."""
        self._sessions[session.session_id] = session
        if closed is not None:
            session.processes.keep_closed(self.spooled if has_spools else None)
            session.processes.keep_again(closed)

    def is_kept(self, session_id: str) -> bool:
        """Return whether somebody has asked for a session to be kept or named."""
        return session_id in self._sessions

    def terms(self, session: Session) -> KeptSession | None:
        """Return how long a session stays and its name; None if nobody has asked for either."""
        if session.session_id not in self._sessions:
            return None
        keep_s = session.record.keep_s
        seconds = self._settings.detached_session_ttl_s if keep_s is None else keep_s
        return KeptSession(keep_ms=int(seconds * 1000), name=session.name)

    def of(self, identity: Identity) -> Iterator[Session]:
        """Yield the kept and named sessions of a peer."""
        return (one for one in list(self._sessions.values()) if one.identity == identity)

    def visible(self, own: Session) -> list[Session]:
        """Return a session and those that its peer can see besides."""
        return [own, *(one for one in self.of(own.identity) if one is not own)]

    def named(self, identity: Identity, name: str) -> Session:
        """Return the session of a peer with this name.  Raises InvalidRequest."""
        for session in self.of(identity):
            if session.name == name:
                return session
        raise InvalidRequest(f"unknown session name {name}")

    def reserve_process_name(self, own: Session, name: str) -> Callable[[], None]:
        """Keep a process name of a peer for a start; return what ends that.  Raises as `keep` does."""
        check_name(name, "processName")
        mark = (own.identity, name)
        running = (process for one in self.visible(own) for _, process in one.processes)
        if mark in self._names or any(_is_called(process, name) for process in running):
            raise InvalidRequest(f"process name {name} is already in use")
        self._names.add(mark)
        return lambda: self._names.discard(mark)

    def detaching(self, session: Session) -> None:
        """Take the time back from a session whose token is over; it leaves those that it follows."""
        if session.record.keep_s and _is_over(session):
            session.record.keep_s = None
        self.leaving(session)

    def leaving(self, follower: Session) -> None:
        """Begin anew the time of the sessions whose processes a session has watched until now."""
        left = {process.owner for process in follower.processes.followed}
        for session in self._sessions.values() if left else ():
            if session.processes.attachment in left:
                self._table.begin_anew(session.record, time.monotonic())

    def hold_followed(self) -> None:
        """Let no session end in which somebody else watches a process, unless its token is over."""
        for session in self._sessions.values():
            is_detached = session.record.attachment is Attachment.DETACHED
            if is_detached and _is_followed(session) and not _is_over(session):
                self._table.begin_anew(session.record, time.monotonic())

    def forget(self, session: Session) -> None:
        """Forget a session that has ended."""
        self._sessions.pop(session.session_id, None)

    def set_timer(self) -> None:
        """Wake up when the next detached session is over; called whenever that may have changed."""
        self._timer.stop()
        due = self._table.next_kept_end()
        if due is None:
            return
        # Sooner, too: a token may be revoked while nobody is connected with it.
        wait = min(max(0.0, due - time.monotonic()), _TOKENS_LOOKED_AT_S)
        self._timer = get_hub().loop.timer(wait)
        self._timer.start(self._look)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.stop()

    def _look(self) -> None:
        for session in self._sessions.values():
            if session.record.attachment is Attachment.DETACHED and _is_over(session):
                session.record.expires_at = 0.0
        self._expire()
        self.set_timer()


def _is_over(session: Session) -> bool:
    from execserver.access.tokens.holder import Holder

    return isinstance(session.identity, Holder) and session.identity.lapsed(time.time()) is not None


def _is_followed(session: Session) -> bool:
    return any(
        watch.attachment.sink is not None
        for _, process in session.processes
        if not process.state.exited
        for watch in process.followers
    )


def _is_called(process: Process, name: str) -> bool:
    return process.name == name and not process.state.exited
