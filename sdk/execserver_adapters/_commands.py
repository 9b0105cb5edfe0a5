"""Commands on a box from start to end, with bounded output: what the adapters for asyncio need."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from execserver_adapters._environments import env_policy_of
from execserver_adapters._following import follow
from execserver_adapters._kept import Kept
from execserver_client import (
    Box,
    ExecEnvPolicy,
    ExecServerError,
    Output,
    OutputGap,
    Process,
    RequestFailed,
    StdinUnavailable,
    TransportClosed,
)

OnOutput = Callable[[str, str], Awaitable[None]]  # text, "stdout" or "stderr"


class Command(NamedTuple):
    """What to run, for at most `timeout` seconds; `env` is set over what `env_policy` lets through (all)."""

    argv: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = {}
    input: bytes | None = None
    sandbox: Any = None
    timeout: float | None = None
    env_policy: ExecEnvPolicy | None = None


class Ran(NamedTuple):
    """A command that ended."""

    exit_code: int
    stdout: Kept
    stderr: Kept


class TimedOut(TimeoutError):
    """The command was ended at its time limit; what it had printed until then is here."""

    def __init__(self, seconds: float, stdout: Kept, stderr: Kept) -> None:
        super().__init__(f"Command timed out after {seconds:g} seconds")
        self.stdout = stdout
        self.stderr = stderr


class Commands:
    """Runs commands on a box.  What one leaves in the background goes on; its output is read and dropped."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._dropping: set[asyncio.Task[None]] = set()

    async def run(self, command: Command, kept: Callable[[], Kept], on_output: OnOutput | None = None) -> Ran:
        """Run a command; when this call fails or is cancelled, the command is killed.

        `kept` makes the collector of a stream.  `on_output` gets the output as it comes; while it waits, the
        command does.  Raises TimedOut, and `RequestFailed` when the command cannot be started.
        """
        streams = _Streams(kept(), kept(), on_output)
        limit = asyncio.timeout(command.timeout)
        try:
            async with limit:
                process = await self._box.start(
                    command.argv,
                    cwd=command.cwd,
                    env=dict(command.env),
                    env_policy=command.env_policy or env_policy_of("all"),
                    pipe_stdin=command.input is not None,
                    sandbox=command.sandbox,
                )
                code = await self._followed(process, command.input, streams)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(command.timeout or 0, streams.stdout, streams.stderr) from None
        return Ran(code, streams.stdout, streams.stderr)

    async def aclose(self) -> None:
        """Read nothing more."""
        for task in self._dropping:
            task.cancel()
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def _followed(self, process: Process, data: bytes | None, streams: _Streams) -> int:
        feeding = asyncio.create_task(_feed(process, data))
        ended = False
        try:
            code = await streams.follow(process)
            ended = True
        finally:
            feeding.cancel()
            if not ended:
                process.abandon()
            await asyncio.gather(feeding, return_exceptions=True)
        if not process.finished:
            task = asyncio.create_task(_drop(process))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)
        return code


class _Streams:
    """Both streams of a command while it runs."""

    def __init__(self, stdout: Kept, stderr: Kept, on_output: OnOutput | None) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._on_output = on_output
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    async def follow(self, process: Process) -> int:
        """Take output until the end of the process, and what comes right behind it; return the exit code."""
        exited = await follow(process, self._take, self._lose)
        for name in self._decoders:
            await self._tell(name, b"", final=True)
        return exited.code

    def _lose(self, size: int) -> None:
        self.stdout.lost += size

    async def _take(self, output: Output) -> None:
        name = "stderr" if output.stream == "stderr" else "stdout"
        (self.stderr if name == "stderr" else self.stdout).add(output.data)
        await self._tell(name, output.data)

    async def _tell(self, name: str, data: bytes, *, final: bool = False) -> None:
        if self._on_output is not None and (text := self._decoders[name].decode(data, final)):
            await self._on_output(text, name)


async def _feed(process: Process, data: bytes | None) -> None:
    if data is None:
        return
    # A command that ends before it has read everything is no error, and the follower tells a lost session.
    with suppress(StdinUnavailable, RequestFailed, TransportClosed):
        if data:
            await process.write(data)
        await process.close_stdin()


async def _drop(process: Process) -> None:
    """Take what a command's own children still print, so that it is not held and holds nothing up."""
    while True:
        try:
            if await process.next_event() is None:
                return
        except OutputGap:
            continue
        except ExecServerError:
            return  # the connection has ended, and the process with it
