"""Params, results and notifications of the first contract, `command/exec*` (wire contract, section 15)."""

from __future__ import annotations

from execserver.protocol.paths import PathUri
from execserver.protocol.process import ExecOutputStream
from execserver.protocol.record import I32, USIZE, Base64, Record, refuse_beyond_u64


class CommandExecParams(Record, frozen=True, kw_only=True):
    """What to run; at most `output_bytes_cap` bytes of each stream are sent (None: all)."""

    process_id: str
    argv: tuple[str, ...]
    cwd: PathUri
    env: dict[str, str]
    tty: bool
    output_bytes_cap: USIZE | None = None
    arg0: str | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.output_bytes_cap)


class CommandExecResponse(Record, frozen=True, kw_only=True):
    """The process runs; the other members are null in the answer to a start."""

    process_id: str
    running: bool
    exit_code: I32 | None = None
    stdout: Base64 | None = None
    stderr: Base64 | None = None


class CommandExecWriteParams(Record, frozen=True, kw_only=True):
    """Bytes for a process's input."""

    process_id: str
    chunk: Base64


class CommandExecWriteResponse(Record, frozen=True, kw_only=True):
    """The bytes were queued."""

    accepted: bool


class CommandExecTerminateParams(Record, frozen=True, kw_only=True):
    """Which process to kill."""

    process_id: str


class CommandExecTerminateResponse(Record, frozen=True, kw_only=True):
    """Whether it had been running."""

    running: bool


class CommandExecOutputDeltaNotification(Record, frozen=True, kw_only=True):
    """A process wrote something."""

    process_id: str
    stream: ExecOutputStream
    chunk: Base64


class CommandExecExitedNotification(Record, frozen=True, kw_only=True):
    """A process ended."""

    process_id: str
    exit_code: I32
