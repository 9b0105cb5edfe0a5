"""A server that is a child of this program: one JSON message per line on its stdin and stdout.

The child gets this program's stderr and a process group of its own.  Closing ends it: end of input and
SIGTERM to the group, SIGKILL after 2 s, and it is reaped in any case.  Nothing can connect to a child again,
so there is no resuming.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import cast

from execserver.client.carriers import children
from execserver.client.errors import ExecServerError, ProtocolViolation, TransportClosed
from execserver.wire.lines import LineSplitter, LineTooLong
from execserver_client._inbox import Inbox

_END_S = 1.0  # between the end of a child's output and its own


class StdioTransport:
    """One child and the two pipe ends to it; owns all three."""

    carries_binary = False  # a line feed ends a message

    def __init__(self, program: str, pid: int, max_message_bytes: int, patience: float, grace: float) -> None:
        """Take a child; `start` makes one, and gives this the pipes."""
        self.pid = pid
        self._program = program
        self._has_answered = False
        self._patience = patience
        self._grace = grace
        self._output = _Output(max_message_bytes)
        self._input = _Input()
        self._sending = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._has_ended = False  # and was reaped: its id may be another's now

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        max_message_bytes: int,
        *,
        patience: float = 2.0,
        grace: float = 0.0,
    ) -> StdioTransport:
        """Start the child; `patience` is the time between SIGTERM and SIGKILL.  Raises `StartFailed`.

        `grace` is how long it may take to end by itself at the end of its input, before SIGTERM.
        """
        pid, to_child, from_child = children.spawn(argv, os.environ if env is None else env)
        made = cls(argv[0], pid, max_message_bytes, patience, grace)
        loop = asyncio.get_running_loop()
        writer, reader = os.fdopen(to_child, "wb", 0), os.fdopen(from_child, "rb", 0)
        try:
            await loop.connect_write_pipe(lambda: made._input, writer)
            await loop.connect_read_pipe(lambda: made._output, reader)
        except BaseException:
            await made.close()
            writer.close()
            reader.close()
            raise
        return made

    async def receive(self) -> bytes | None:
        """Return the next line, or None at the end of the child's output (see `Transport`).

        Raises `StartFailed` for an end before the first line.
        """
        line = await self._output.inbox.get()
        if line is None:
            await self._check_start()
        else:
            self._has_answered = True
        return line

    async def send(self, message: bytes) -> None:
        """Write one line; waits while the child does not read.  Raises `TransportClosed`."""
        async with self._sending:
            await self._input.room.wait()
            if not self._input.write(message + b"\n"):
                await self._check_start()
                raise TransportClosed("the pipe to the server broke")

    async def _check_start(self) -> None:
        """Raise `StartFailed` if the child has never answered; it is over with it."""
        if not (self._has_answered or self._closing):
            await _ended_within(self.pid, _END_S)
            raise children.failed_start(self._program, self.pid)

    async def close(self) -> None:
        """End the child, at the latest with SIGKILL, and reap it."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._kill()  # nobody waits for an orderly end
            raise

    async def _close(self) -> None:
        try:
            self._input.abort()
            self._has_ended = self._grace > 0 and await _reaped_within(self.pid, self._grace)
            self._output.abort()
            if not self._has_ended:
                children.signal_group(self.pid, signal.SIGTERM)
                self._has_ended = await _reaped_within(self.pid, self._patience)
            if not self._has_ended:
                self._kill()
                self._has_ended = await _reaped_within(self.pid, None)
            await self._input.gone.wait()
            await self._output.gone.wait()
        except asyncio.CancelledError:  # the loop itself ends
            self._kill()
            children.reap(self.pid)
            raise

    def _kill(self) -> None:
        if not self._has_ended:
            children.signal_group(self.pid, signal.SIGKILL)


class _Pipe(asyncio.BaseProtocol):
    """One pipe and the end of it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()  # set while there is no pipe
        self.gone.set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the pipe."""
        self.gone.clear()
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the pipe is closed."""
        self._transport = None
        self.gone.set()


class _Output(_Pipe):
    """What the child writes, cut into lines."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__()
        self.inbox = Inbox(self._pause, self._resume)
        self._lines = LineSplitter(max_message_bytes)

    def data_received(self, data: bytes) -> None:
        """Keep the lines that are complete."""
        try:
            for line in self._lines.feed(data):
                self.inbox.put(line)
        except LineTooLong as error:
            self._end(ProtocolViolation(str(error)))
        else:
            self.inbox.settle()

    def eof_received(self) -> None:
        """Note the end of the output."""
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end of the pipe."""
        broke = None if error is None else TransportClosed(f"the pipe from the server broke: {error}")
        self.inbox.end(broke)
        super().connection_lost(error)

    def abort(self) -> None:
        """Close the pipe."""
        self.inbox.let_go()
        self._end(TransportClosed("the connection is closed"))

    def _end(self, error: ExecServerError | None) -> None:
        self.inbox.end(error)
        if self._transport is not None:
            self._transport.close()

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class _Input(_Pipe):
    """What the child reads."""

    def __init__(self) -> None:
        super().__init__()
        self.room = asyncio.Event()
        self.room.set()

    def write(self, line: bytes) -> bool:
        """Write a line; return False if the pipe is broken."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(line)
        return True

    def pause_writing(self) -> None:
        """Note that the child does not read."""
        self.room.clear()

    def resume_writing(self) -> None:
        """Note that it does again."""
        self.room.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Let those who wait find out."""
        self.room.set()
        super().connection_lost(error)

    def abort(self) -> None:
        """Close the pipe."""
        if self._transport is not None:
            self._transport.abort()


async def _reaped_within(pid: int, seconds: float | None) -> bool:
    """Wait for the end of a child and reap it; return False when time is up."""
    if not await _ended_within(pid, seconds):
        return False
    children.reap(pid)
    return True


async def _ended_within(pid: int, seconds: float | None) -> bool:
    pidfd = children.watch_end(pid)
    if pidfd is None:
        return True
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
    finally:
        os.close(pidfd)
    return True
