"""One shell on a box that goes on from call to call: its folder, its variables, its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from execserver_adapters._marked_output import Marked, Said
from execserver_client import Closed, ExecServerError, Exited, Output, OutputGap, Process


class ShellEnded(Exception):
    """The shell is no more; the next command starts another one."""


class Shell:
    """Starts its process when it is first used.  Commands run one after the other."""

    def __init__(self, start: Callable[[], Awaitable[Process]], limit: int) -> None:
        """`start` starts a shell that reads commands from its input; `limit` is in bytes of output."""
        self._start = start
        self._limit = limit
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def run(self, command: str, timeout: float) -> Said:
        """Run a command.  A timeout or a cancellation ends the shell, so that nothing comes late.

        Raises TimeoutError; `ShellEnded`, with what it printed, where the command ended its shell.
        """
        async with self._turn:
            if self._process is None:
                self._process = await self._start()
            process, output = self._process, Marked(self._limit)
            whole = False
            try:
                async with asyncio.timeout(timeout):
                    await process.write(output.line(command))
                    status = await _until_marked(process, output)
                whole = status is None
            finally:
                if not whole:
                    await asyncio.shield(self._end())
        if status is not None:
            said = output.said(status)
            raise ShellEnded(f"{said.text}\n[the shell ended with status {said.status}]".lstrip("\n"))
        return output.said()

    async def restart(self) -> None:
        """End the shell; the next command starts another one."""
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            await process.terminate()
        except ExecServerError:
            pass  # the connection is over, and with it the shell


async def _until_marked(process: Process, output: Marked) -> int | None:
    """Collect until the mark has come: None; or until the shell has ended: its status."""
    status = -1
    while True:
        try:
            event = await process.next_event()
        except OutputGap:
            continue
        match event:
            case Output():
                if output.add(event.data):
                    return None
            case Exited():
                status = event.code
            case Closed() | None:
                return status
