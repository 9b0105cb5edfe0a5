"""The output of a process until its end, and for a moment what its own children still print."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from execserver_client import Exited, Output, OutputGap, Process

# How long output may still come after the end of a command whose own children hold its pipes.
_SETTLE_S: Final = 0.3


async def follow(
    process: Process, take: Callable[[Output], Awaitable[None]], lose: Callable[[int], None]
) -> Exited:
    """Pass on the output of a process, and return its end; `lose` learns how many bytes never arrived."""
    exited: Exited | None = None
    while True:
        try:
            event = await process.next_event(None if exited is None else _SETTLE_S)
        except OutputGap as gap:
            lose(gap.lost_bytes or 1)
            continue
        except TimeoutError:
            if exited is None:
                raise
            return exited
        if event is None:
            return exited or Exited(seq=0, code=await process.wait())
        if isinstance(event, Exited):
            exited = event
        elif isinstance(event, Output):
            await take(event)
