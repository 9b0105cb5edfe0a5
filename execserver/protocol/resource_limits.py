"""Limits of processes, why a process ended, and what it used (an extension: `limits` in `process/start`)."""

from __future__ import annotations

import enum

from execserver.protocol.record import I64, U64, Record


class LimitEnforcement(enum.Enum):
    """`kernel` refuses a limit that the kernel does not hold here; `best` takes what there is."""

    KERNEL = "kernel"
    BEST = "best"


class ResourceLimits(Record, frozen=True, kw_only=True):
    """What a process and all it starts may use at most; None is no limit.

    Of `cpu_ms`, `file_bytes` and `open_files` each of its processes has its own, but for `cpu_ms` where there
    is a control group.  `processes` counts threads, too.
    """

    memory_bytes: I64 | None = None
    processes: I64 | None = None
    cpu_percent: I64 | None = None
    wall_ms: I64 | None = None
    cpu_ms: I64 | None = None
    file_bytes: I64 | None = None
    open_files: I64 | None = None
    enforce: LimitEnforcement = LimitEnforcement.KERNEL


class EndCause(enum.Enum):
    """Why a process did not end by itself."""

    LIMIT = "limit"
    DEADLINE = "deadline"
    SIGNAL = "signal"
    MACHINE_MEMORY = "machineMemory"
    UNKNOWN = "unknown"


class ProcessEnd(Record, frozen=True, kw_only=True):
    """Why a process ended that did not exit by itself.

    `limit` is the member of `limits` that was reached, `value` what it was, and `scope` whose it was:
    `process`, `session`, or `service` for that of the group which the server itself runs in.  `signal` is the
    number of the signal that ended it, which the exit code does not tell of a process on a terminal.
    """

    cause: EndCause
    limit: str | None = None
    scope: str | None = None
    value: U64 | None = None
    signal: I64 | None = None
    text: str


class ResourceUsage(Record, frozen=True, kw_only=True):
    """What a process used, with all it started if `complete`; `peak_bytes` is None where it is unknown."""

    cpu_ms: U64
    peak_bytes: U64 | None = None
    complete: bool
