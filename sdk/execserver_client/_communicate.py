"""Running a process to its end: input in, output collected, exit code out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from execserver.client.errors import (
    OutputGap,
    RequestFailed,
    StdinUnavailable,
    TransportClosed,
    kept,
)
from execserver.client.rules.collecting import Collector, CompletedProcess
from execserver.client.rules.event_log import Output

_PIECE: Final = 128 * 1024  # large input is cut into such, so that several are under way

if TYPE_CHECKING:
    from execserver_client.process import Process


async def communicate(
    process: Process,
    input: bytes | None,
    timeout: float | None,
    collector: Collector,
    allow_gaps: bool,
) -> CompletedProcess:
    """See `Process.communicate`; what has come is in `collector` whatever happens."""
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    if input is None:
        await _collect(process, deadline, collector)
    else:
        process.require_close_stdin()
        await _feed_and_collect(process, bytes(memoryview(input)), deadline, collector)
    exit_code = await process.wait(None if deadline is None else deadline - clock())
    if collector.gaps and not allow_gaps:
        raise kept(collector.gaps[0])
    return collector.completed(exit_code)


async def _feed_and_collect(
    process: Process, data: bytes, deadline: float | None, collector: Collector
) -> None:
    # No TaskGroup: those of Python 3.11 and 3.12 leave a cycle behind each cancellation.
    loop = asyncio.get_running_loop()
    collecting = loop.create_task(_collect(process, deadline, collector))
    feeding = loop.create_task(_feed(process, data))
    # A process whose input never comes whole may wait for it for ever.
    feeding.add_done_callback(lambda fed: collecting.cancel() if _error_of(fed) is not None else None)
    try:
        await asyncio.wait([collecting])
    finally:
        feeding.cancel()
        collecting.cancel()
        await asyncio.wait([feeding, collecting])
    error = _error_of(feeding) or _error_of(collecting)
    if error is not None:
        raise kept(error)  # a copy: raised itself, it and this frame would hold each other


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


async def _feed(process: Process, data: bytes) -> None:
    try:
        if len(data) > _PIECE:
            await process.write_all(data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        elif data:
            await process.write(data)
        await process.close_stdin()
    except (StdinUnavailable, RequestFailed):
        pass  # it ended before it had read everything, which is no error
    except TransportClosed:
        pass  # the session has ended, which the collector reports


async def _collect(process: Process, deadline: float | None, collector: Collector) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        try:
            event = await process.next_event(None if deadline is None else deadline - clock())
        except OutputGap as gap:
            collector.gaps.append(kept(gap))
            continue
        if event is None:
            return
        if isinstance(event, Output):
            collector.add(event)
