"""One command from its start to its end, with a time limit, and killed when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from execserver.client.errors import WaitTimeout
from execserver.client.rules.collecting import Collector
from execserver.client.rules.event_log import UNKNOWN_EXIT
from execserver_client._communicate import communicate
from execserver_client.errors import CommandFailed, CommandTimeout
from execserver_client.process import Process
from execserver_client.result import Result


class Command(NamedTuple):
    """What `Box.run` was asked for beyond the start."""

    argv: tuple[str, ...]
    input: bytes | None
    timeout: float | None
    check: bool
    max_output: int
    allow_gaps: bool


async def complete(start: Callable[[], Awaitable[Process]], command: Command) -> Result:
    """See `Box.run`."""
    clock = asyncio.get_running_loop().time
    deadline = None if command.timeout is None else clock() + command.timeout
    collector = Collector(command.max_output)
    process = await _started(start, command, deadline)
    try:
        left = None if deadline is None else max(0.0, deadline - clock())
        found = await communicate(process, command.input, left, collector, command.allow_gaps)
        denied = found.exit_code != 0 and await process.sandbox_denied()
    except BaseException as error:
        process.abandon()
        if isinstance(error, WaitTimeout) and deadline is not None and clock() >= deadline:
            raise _too_long(command, collector) from None
        raise
    result = Result(
        exit_code=found.exit_code,
        stdout=found.stdout,
        stderr=found.stderr,
        sandbox_denied=denied,
        gaps=found.gaps,
        ended=None if process.exited is None else process.exited.ended,
        usage=None if process.exited is None else process.exited.usage,
    )
    if command.check and not result.ok:
        raise CommandFailed(command.argv, result)
    return result


async def _started(
    start: Callable[[], Awaitable[Process]], command: Command, deadline: float | None
) -> Process:
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await start()
    except TimeoutError:
        if not limit.expired():
            raise
        raise _too_long(command, Collector(0)) from None


def _too_long(command: Command, collector: Collector) -> CommandTimeout:
    assert command.timeout is not None
    found = collector.completed(UNKNOWN_EXIT)
    result = Result(exit_code=UNKNOWN_EXIT, stdout=found.stdout, stderr=found.stderr, gaps=found.gaps)
    return CommandTimeout(command.argv, command.timeout, result)
