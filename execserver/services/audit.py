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
from operator import attrgetter
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from gevent.hub import get_hub
from msgspec.structs import fields

from execserver.audit.chain import digest_of, line_of
from execserver.audit.recording import Recording
from execserver.audit.segments import Segments
from execserver.protocol import methods, own_methods
from execserver.protocol.errors import InternalError
from execserver.protocol.files import FsOpenMode
from execserver.protocol.lifting import Lifted
from execserver.services.observers import ERROR, SUCCESS, Answered, Started, Who
from execserver.services.process import Process

_log = logging.getLogger(__name__)

_SYNC_S = 1.0
_WARN_S = 10.0
_SESSION_CHARACTERS = 8
_STRANGE_BYTES = 200
_NO_URL, _NO_WORDS = "(no URL)", "(no words)"


_NOT_GIVEN = msgspec.Raw()


class _Facts(msgspec.Struct, kw_only=True, rename="camel"):
    """The members of params that are recorded; all others are skipped.

    Not one has a type here: a request may have any members besides its own, and none of them may hide others.
    """

    argv: msgspec.Raw = _NOT_GIVEN
    command: msgspec.Raw = _NOT_GIVEN
    cwd: msgspec.Raw = _NOT_GIVEN
    path: msgspec.Raw = _NOT_GIVEN
    source_path: msgspec.Raw = _NOT_GIVEN
    destination_path: msgspec.Raw = _NOT_GIVEN
    recursive: msgspec.Raw = _NOT_GIVEN
    mode: msgspec.Raw = _NOT_GIVEN
    process_id: msgspec.Raw = _NOT_GIVEN
    signal: msgspec.Raw = _NOT_GIVEN
    host: msgspec.Raw = _NOT_GIVEN
    port: msgspec.Raw = _NOT_GIVEN
    url: msgspec.Raw = _NOT_GIVEN
    method: msgspec.Raw = _NOT_GIVEN
    client_name: msgspec.Raw = _NOT_GIVEN
    network_proxy: msgspec.Raw = _NOT_GIVEN  # not recorded: it tells whether words may be credentials


_READER = msgspec.json.Decoder(_Facts)
_RECORDED = [each for each in fields(_Facts) if each.name != "network_proxy"]
_SHOWN = tuple("httpMethod" if each.name == "method" else each.encode_name for each in _RECORDED)
_GIVEN = attrgetter(*(each.name for each in _RECORDED))
_MASKED = "(credentials are masked)"
_NUMBER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_PLAIN = msgspec.json.Decoder(str | _NUMBER | bool | list[str] | None)
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
            own_methods.FS_WRITE_MANY.name,
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
        if event is None or (answered.result == SUCCESS and not event):
            return
        facts = self._facts(answered)
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

    def _facts(self, answered: Answered) -> dict[str, object]:
        """Return what is recorded of the params."""
        params = answered.request.params
        try:
            found = params.decoded(_READER) if isinstance(params, Lifted) else _READER.decode(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {"params": "unreadable"}
        facts = {
            shown: value
            for shown, text in zip(_SHOWN, _GIVEN(found), strict=True)
            if text is not _NOT_GIVEN and (value := _plain(text)) is not None
        }
        for name in ("argv", "command"):
            if isinstance(words := facts.get(name), list):
                # A start that failed has no stand-ins yet.
                given = bytes(found.network_proxy)
                masks = b"credentialMasking" in given or b"\\u" in given  # a name may be written so
                facts[name] = [self._redact(word) for word in ([*words[:1], _MASKED] if masks else words)]
            elif name in facts:
                facts[name] = _NO_WORDS
        if "url" in facts:
            facts["url"] = _shown_url(facts["url"])
        if trace := answered.request.trace:
            facts["trace"] = (trace.traceparent or "")[:64]
        return facts

    def _write(self, event: str, members: dict[str, object]) -> bool:
        now = self._now()
        if int(now) != self._second:
            self._second = int(now)
            self._shown_second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        at = f"{self._shown_second}.{int(now % 1 * 1000):03d}Z"
        line = line_of(self._number + 1, at, event, members, self._head)
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
    members: dict[str, object] = {"session": who.session_id[:_SESSION_CHARACTERS]}
    if who.identity.way != "none":
        members["who"] = f"{who.identity.way}:{who.identity.name}"
    return members


def _plain(text: msgspec.Raw) -> object:
    """Return a member's value; of one that no request takes, the beginning of its JSON."""
    try:
        return _PLAIN.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bytes(text)[:_STRANGE_BYTES].decode(errors="backslashreplace")


def _shown_url(url: object) -> str:
    """Return scheme, host and path of a URL: what is behind may be a secret, and so may a user in it."""
    if not isinstance(url, str):
        return _NO_URL
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return _NO_URL
