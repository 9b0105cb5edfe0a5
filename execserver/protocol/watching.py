"""Params, results and notifications of watched processes and of their logs (extensions of this server)."""

from __future__ import annotations

from execserver.protocol.process import ExecOutputStream
from execserver.protocol.record import I32, U16, U64, Base64, Record, refuse_beyond_u64
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage


class SessionProcess(Record, frozen=True, kw_only=True):
    """One process of one of the peer's sessions; what the system does not report, or no longer, is None."""

    session_id: str
    session_name: str | None = None
    process_id: str
    process_name: str | None = None
    argv: tuple[str, ...]
    pid: U64 | None = None
    tty: bool
    rows: U16 | None = None
    cols: U16 | None = None
    running: bool
    exit_code: I32 | None = None
    started_at_ms: U64
    cpu_time_ms: U64 | None = None
    rss_bytes: U64 | None = None
    ended: ProcessEnd | None = None
    usage: ResourceUsage | None = None
    watchers: U64


class SessionProcessesResponse(Record, frozen=True, kw_only=True):
    """The processes of all sessions that `session/list` shows."""

    processes: tuple[SessionProcess, ...]


class WatchProcessParams(Record, frozen=True, kw_only=True):
    """Which process of which session to follow from `after_seq` on, under which id (`watch_id`)."""

    session_id: str
    process_id: str
    watch_id: str
    after_seq: U64 | None = None
    take: bool = False

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.after_seq)


class WatchProcessResponse(Record, frozen=True, kw_only=True):
    """The process as it is now; its notifications follow, with the id of the watch."""

    process_id: str
    argv: tuple[str, ...]
    tty: bool
    rows: U16 | None = None
    cols: U16 | None = None
    running: bool
    exit_code: I32 | None = None
    next_seq: U64
    writer: bool


class TakeParams(Record, frozen=True, kw_only=True):
    """Which process this session wants to write to."""

    process_id: str


class TakeResponse(Record, frozen=True, kw_only=True):
    """This session writes."""

    writer: bool


class UnwatchParams(Record, frozen=True, kw_only=True):
    """Which watch is over."""

    process_id: str


class UnwatchResponse(Record, frozen=True, kw_only=True):
    """Empty: also for unknown ids."""


class TakenNotification(Record, frozen=True, kw_only=True):
    """Who writes to a process has changed; `writer` tells whether it is this session now."""

    process_id: str
    writer: bool


class GapNotification(Record, frozen=True, kw_only=True):
    """A watcher was too slow: the events from `first_seq` to `last_seq` will not come.

    `lost_bytes` is None where it is not known.
    """

    process_id: str
    first_seq: U64
    last_seq: U64
    lost_bytes: U64 | None = None


class LogParams(Record, frozen=True, kw_only=True):
    """Where to begin in all that is kept of a process's output; the latest beginning counts.

    `since_ms` is a time in Unix milliseconds, `tail_bytes` counts from the end.
    """

    process_id: str
    after_seq: U64 | None = None
    max_bytes: U64 | None = None
    tail_bytes: U64 | None = None
    since_ms: U64 | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.after_seq, self.max_bytes, self.tail_bytes, self.since_ms)


class LogChunk(Record, frozen=True, kw_only=True):
    """One piece of output, and when it was read from the process, in Unix milliseconds."""

    seq: U64
    stream: ExecOutputStream
    chunk: Base64
    at_ms: U64


class LogResponse(Record, frozen=True, kw_only=True):
    """A page of the log; the next one comes after `next_seq` - 1, and an empty one is the end for now.

    `lost_bytes` counts what is kept nowhere any more; `spool_error` says why nothing is spooled any more.
    """

    chunks: tuple[LogChunk, ...]
    next_seq: U64
    oldest_seq: U64
    lost_bytes: U64
    exited: bool
    exit_code: I32 | None = None
    closed: bool
    spool_error: str | None = None
