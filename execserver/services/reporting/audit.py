"""The audit log of a server: what its clients did here, and what was refused them.

Recorded are sessions, starts with their words, ends with their cause, changes of files by their paths,
forwarded connections, where commands connected to through a proxy of ours, requests of the server's own over
HTTP, and refusals.  Never recorded are contents, output, input, environments, and of a session's id more than
its beginning: who knows the whole can resume it.

A line is written at once, so that the death of the server loses nothing; each second a thread has the disk
hold what was written.  While nothing can be written, records are counted, and the first that can says how
many are missing.  Where the log is *required*, requests that act are refused meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from gevent.hub import get_hub

from execserver.audit.chain import digest_of, json_text, line_around, line_of
from execserver.audit.recording import Recording
from execserver.audit.segments import Segments
from execserver.protocol import methods, own_methods
from execserver.protocol.errors import InternalError
from execserver.protocol.files import FsOpenMode
from execserver.services.reporting.audit_facts import Piece, facts_of, json_of, piece_of, quick_text
from execserver.services.reporting.observers import ERROR, SUCCESS, Answered, Started, Who
from execserver.services.running.process import Process

_log = logging.getLogger(__name__)

_SYNC_S = 1.0
_WARN_S = 10.0
_SESSION_CHARACTERS = 8
_NAME_CHARACTERS = 200  # of who asks, in a record made the quick way
# What a request that ended well is recorded as; one that was refused is a `refusal`.
EVENTS = {
    methods.INITIALIZE.name: "session",
    own_methods.SESSION_END.name: "session-end",
    methods.PROCESS_START.name: "",  # a start is recorded with the process that it made
    methods.COMMAND_EXEC.name: "",
    methods.PROCESS_SIGNAL.name: "signal",
    methods.PROCESS_TERMINATE.name: "signal",
    methods.HTTP_REQUEST.name: "http",
    own_methods.PORT_OPEN.name: "forward",
    own_methods.PORT_LISTEN.name: "forward",
    **dict.fromkeys(
        (
            *(methods.FS_WRITE_FILE.name, methods.FS_CREATE_DIRECTORY.name, methods.FS_REMOVE.name),
            *(methods.FS_COPY.name, methods.FS_OPEN.name, own_methods.FS_RENAME.name),
            *(own_methods.FS_CHMOD.name, own_methods.FS_TOUCH.name, own_methods.FS_EXTRACT.name),
            *(own_methods.FS_WRITE_MANY.name, own_methods.FS_WRITE_PART.name),
        ),
        "change",
    ),
}
_READ = FsOpenMode.READ.value


class AuditTrail:
    """An `Observer` that writes the log; owns its files."""

    def __init__(
        self,
        segments: Segments,
        redact: Callable[[str], str],
        now: Callable[[], float] = time.time,
        *,
        required: bool = False,
    ) -> None:
        """`redact` returns a text without the secrets in it."""
        self._segments = segments
        self._redact = redact
        self._now = now
        self._required = required
        self._number, self._head = segments.end.number, segments.end.head
        self._lost = 0  # records that could not be written
        self._piece: tuple[str, Piece] | None = None  # with its session, if the last request brought one
        self._is_short = False  # of room, when it was last needed
        self._warned = -_WARN_S
        self._why = ""
        self._second, self._shown_second = -1, ""  # of the newest record
        self._is_dirty = self._is_syncing = False
        self._timer = get_hub().loop.timer(_SYNC_S, _SYNC_S)

    @property
    def head(self) -> tuple[int, str]:
        """The number of the newest record, and the digest of its line."""
        return self._number, self._head

    def start(self, **facts: object) -> None:
        """Record that the server begins, and what a crash has torn off."""
        cut = self._segments.end.cut
        self.record("begin", **facts, **({"cutBytes": cut} if cut else {}))
        self._timer.start(self._sync)

    def close(self) -> None:
        """Record the end of the server, and close the files."""
        self.record("end")
        self._timer.stop()
        try:
            self._segments.sync()
        except OSError as error:
            _log.error("the end of the audit log may not be on the disk: %s", error)
        self._segments.close()

    def sync_now(self) -> None:
        """Have the disk hold what was written; blocks for that."""
        try:
            self._segments.sync()
        except OSError as error:
            self._failed(error)

    def record(self, event: str, **members: object) -> None:
        """Write a record; what cannot be written is counted."""
        if self._lost and not self._write("lost", {"records": self._lost, "why": self._why}):
            self._lost += 1
            return
        self._lost = 0
        if not self._write(event, members):
            self._lost = 1

    def begin_recording(self, who: Who, process_id: str, argv: Sequence[str]) -> Recording | None:
        """Begin the recording of a process that is to be started, and record its name.

        Where the disk does not take it the process goes without, unless the log is required: InternalError.
        """
        at_ms = int(self._now() * 1000)
        facts = {"process": process_id, "at": at_ms, "argv": [self._redact(word) for word in argv]}
        try:
            recording = Recording(self._segments.folder, at_ms, facts | whom(who))
        except OSError as error:
            self._failed(error)
            if self._required:
                raise InternalError(
                    f"the process cannot be recorded, which is required: {self._why}"
                ) from None
            return None
        self.record("recording", **whom(who), process=process_id, recording=recording.name)
        return recording

    # What happens: see `Observer`.

    def connected(self) -> None:
        """See `Observer`: a session says more."""

    def disconnected(self) -> None:
        """See `Observer`."""

    def bad_trace(self) -> None:
        """See `Observer`."""

    def answered(self, answered: Answered) -> None:
        """See `Observer`."""
        method = answered.request.method
        event = EVENTS.get(method)
        if event is None or not self._is_news(answered):
            return
        if answered.result == SUCCESS and (not event or self._is_quickly_told(event, answered)):
            return
        facts = facts_of(answered.request, self._redact)
        if method == methods.FS_OPEN.name and facts.get("mode", _READ) == _READ:
            return  # a file that is opened for reading is not changed
        if answered.error is not None:
            # Texts about HTTP repeat the whole URL.
            why = "" if method == methods.HTTP_REQUEST.name else self._redact(answered.error.message)
            self.record(
                "refusal", **whom(answered.who), method=method, **facts, code=answered.error.code, why=why
            )
        elif answered.result != ERROR:
            ended = {} if answered.result == SUCCESS else {"answered": False}
            self.record(event or "start", **whom(answered.who), method=method, **facts, **ended)

    def process_started(self, started: Started) -> None:
        """See `Observer`."""
        process = started.process
        self.record(
            "start",
            **whom(started.who),
            process=process.process_id,
            pid=process.pid,
            argv=[self._redact(word) for word in process.argv],
            cwd=started.cwd.decode(errors="backslashreplace"),
            sandboxed=started.is_sandboxed,
        )

    def process_taken_over(self, process: Process) -> None:
        """See `Observer`: its start is in the log."""

    def process_exited(self, process: Process) -> None:
        """See `Observer`."""
        state = process.state
        cause = "terminated" if state.terminated else "exited"
        members: dict[str, object] = {"exitCode": state.exit_code, "cause": cause}
        ended, usage = process.ending or (None, None)
        if ended is not None and not state.terminated:
            members |= {"cause": ended.cause.value, "why": ended.text}
            if ended.limit is not None:
                members |= {"limit": ended.limit, "scope": ended.scope}
        if usage is not None:
            members["cpuMs"] = usage.cpu_ms
        if state.sandbox_refusal:
            members["cause"], members["why"] = "refused", self._redact(state.sandbox_refusal)
        elif state.sandbox_denied:
            members["sandboxDenied"] = True
        seconds = round(max(0.0, self._now() - process.started_at), 3)
        self.record("exit", process=process.process_id, pid=process.pid, **members, seconds=seconds)

    def refusal(self, method: str) -> str | None:
        """See `Observer`: where the log is required, nothing is done that it could not tell."""
        if not (self._required and self._is_short) or method not in EVENTS:
            return None
        try:
            # Not a short record: who has room for that only does what then cannot be told.
            self._segments.try_room()
        except OSError as error:
            self._failed(error)
            return f"the audit log, which is required here, cannot be written: {self._why}"
        self._is_short = False
        return None

    def _is_news(self, answered: Answered) -> bool:
        """Return False for a piece behind the one before, of which a file may have thousands."""
        before, self._piece = self._piece, None
        if answered.request.method != own_methods.FS_WRITE_PART.name or answered.result != SUCCESS:
            return True
        piece, session_id = piece_of(answered.request), answered.who.session_id
        if piece is None:
            return True
        self._piece = session_id, piece
        return before is None or before[0] != session_id or not piece.continues(before[1])

    def _is_quickly_told(self, event: str, answered: Answered) -> bool:
        """Write the record that `record` would, if this is one of the many whose members are plain."""
        request, (session_id, (way, name, _)) = answered.request, answered.who
        if self._lost or request.method == methods.FS_OPEN.name or len(name) > _NAME_CHARACTERS:
            return False
        text = quick_text(request)
        if text is None:
            return False
        said = _said(event, session_id[:_SESSION_CHARACTERS], way, name, request.method)
        members = f"{said},{text}" if text else said
        if not self._append(line_around(self._number + 1, self._at(), members, self._head)):
            self._lost = 1
        return True

    def _write(self, event: str, members: dict[str, object]) -> bool:
        return self._append(line_of(self._number + 1, self._at(), event, members, self._head, _quick_json))

    def _at(self) -> str:
        now = self._now()
        second = int(now)
        if second != self._second:
            self._second = second
            self._shown_second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return f"{self._shown_second}.{int((now - second) * 1000):03d}Z"

    def _append(self, line: bytes) -> bool:
        try:
            self._segments.append(line)
        except OSError as error:
            self._is_short = True
            self._failed(error)
            return False
        self._number, self._head = self._number + 1, digest_of(line)
        self._is_dirty = True
        return True

    def _failed(self, error: OSError) -> None:
        self._why = error.strerror or str(error)
        if time.monotonic() - self._warned >= _WARN_S:
            self._warned = time.monotonic()
            _log.error("the audit log cannot be written, records are missing: %s", self._why)

    def _sync(self) -> None:
        if self._is_dirty and not self._is_syncing:
            self._is_dirty, self._is_syncing = False, True
            done = get_hub().threadpool.spawn(_synced, self._segments)
            done.rawlink(self._was_synced)

    def _was_synced(self, done: object) -> None:
        self._is_syncing = False
        if isinstance(why := getattr(done, "value", None), OSError):
            self._failed(why)


def _synced(segments: Segments) -> OSError | None:
    """Sync, in a thread; an error is returned, since gevent prints what a thread raises."""
    try:
        segments.sync()
    except OSError as error:
        return error
    return None


def whom(who: Who) -> dict[str, object]:
    """Return the members of a record that say for whom something is done."""
    return _whom(who.session_id[:_SESSION_CHARACTERS], who.identity.way, who.identity.name)


def _whom(session: str, way: str, name: str) -> dict[str, object]:
    members: dict[str, object] = {"session": session}
    if way != "none":
        members["who"] = f"{way}:{name}"
    return members


@lru_cache(maxsize=256)
def _said(event: str, session: str, way: str, name: str, method: str) -> str:
    """Return the members that all records of a session and method begin with, as JSON without the braces."""
    return json_text({"event": event, **_whom(session, way, name), "method": method})[1:-1]


def _quick_json(value: object) -> str:
    return json_of(value, json_text)
