"""Running a process to its end: input in, output collected, exit code out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gevent

from execserver.client.errors import (
    OutputGap,
    RequestFailed,
    StdinUnavailable,
    TransportClosed,
    kept,
)
from execserver.client.rules.collecting import Collector, CompletedProcess
from execserver.client.rules.event_log import Output

if TYPE_CHECKING:
    from execserver.client.process import RemoteProcess


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
    return collected.completed(exit_code)


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


def _collect(process: RemoteProcess, deadline: float | None, max_output: int) -> Collector:
    collected = Collector(max_output)
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
