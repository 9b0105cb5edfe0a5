"""Running a process to its end: input in, output collected, exit code out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import gevent

from execserver.client.errors import (
    OutputGap,
    OutputTooLarge,
    RequestFailed,
    StdinUnavailable,
    TransportClosed,
    kept,
)
from execserver.client.event_log import Output

if TYPE_CHECKING:
    from execserver.client.process import RemoteProcess

MAX_COLLECTED: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 4096


class CompletedProcess(NamedTuple):
    """The output of a process and its exit code.  The output of a terminal is in `stdout`."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    gaps: tuple[OutputGap, ...] = ()


class _Pieces:
    """Bytes of one stream: large pieces are kept as they came and copied once, small ones joined at once."""

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        if len(data) >= _PIECE_BYTES:
            self._pieces.append(data)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def joined(self) -> bytes:
        return b"".join(self._pieces)


class _Collector:
    """Output by stream, up to a bound."""

    def __init__(self, max_output: int) -> None:
        self.stdout = _Pieces()
        self.stderr = _Pieces()
        self.gaps: list[OutputGap] = []
        self._size = 0
        self._max_output = max_output

    def add(self, output: Output) -> None:
        (self.stderr if output.stream == "stderr" else self.stdout).add(output.data)
        self._size += len(output.data)
        if self._size > self._max_output:
            raise OutputTooLarge(f"the process printed more than {self._max_output} bytes")


def communicate(
    process: RemoteProcess, input: bytes | None, timeout: float | None, max_output: int, allow_gaps: bool
) -> CompletedProcess:
    """See `RemoteProcess.communicate`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if input is not None:
        process.require_close_stdin()
    writer = gevent.spawn(_feed, process, input)
    try:
        collected = _collect(process, deadline, max_output)
        exit_code = process.wait(_left(deadline))
    finally:
        writer.kill()
    if collected.gaps and not allow_gaps:
        raise kept(collected.gaps[0])
    return CompletedProcess(
        exit_code, collected.stdout.joined(), collected.stderr.joined(), tuple(collected.gaps)
    )


def _feed(process: RemoteProcess, data: bytes | None) -> None:
    if data is None:
        return
    try:
        if data:
            process.write(data)
        process.close_stdin()
    except (StdinUnavailable, RequestFailed):
        pass  # it ended before it had read everything, which is no error
    except TransportClosed:
        pass  # the session has ended, which the collector reports


def _collect(process: RemoteProcess, deadline: float | None, max_output: int) -> _Collector:
    collected = _Collector(max_output)
    while True:
        try:
            event = process.next_event(_left(deadline))
        except OutputGap as gap:
            collected.gaps.append(kept(gap))
            continue
        if event is None:
            return collected
        if isinstance(event, Output):
            collected.add(event)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
