"""The processes of one session that go on between two turns of an agent.

A task for each one takes its output, so that none stands still because the agent looks elsewhere; of what
nobody has asked for yet the first and the last 512 KiB are kept.  64 processes at most: one more ends the one
that was not used for the longest time, a finished one first.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from typing import Final

from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    process_id_to_prune_from_meta,
    truncate_text_by_tokens,
)

from execserver_adapters._following import follow
from execserver_adapters._kept import Kept
from execserver_client import ExecServerError, Output, Process

_HALF: Final = 512 * 1024


class Running:
    """One process, its output that nobody has seen yet, and the task that collects it."""

    def __init__(self, process: Process, tty: bool) -> None:
        self.process = process
        self.tty = tty
        self.last_used = time.monotonic()
        self.exit_code: int | None = None
        self.failure: ExecServerError | None = None
        self._unseen = Kept(_HALF, _HALF)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._task = asyncio.create_task(self._collect())

    @property
    def done(self) -> bool:
        """Whether it has ended and all its output is here."""
        return self._task.done()

    async def wait(self, seconds: float) -> None:
        """Wait until it is done, at most for some seconds."""
        await asyncio.wait((self._task,), timeout=seconds)

    def take(self) -> str:
        """Return what has not been seen; a character that has come in part stays for the next time."""
        unseen, self._unseen = self._unseen, Kept(_HALF, _HALF)
        return self._decoder.decode(unseen.joined(), self.done)

    async def end(self) -> None:
        """Kill what still runs and end the task."""
        if not self.done:
            try:
                await self.process.terminate()
            except ExecServerError:
                pass  # the connection is over, and with it the process
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self) -> None:
        try:
            self.exit_code = (await follow(self.process, self._take, self._lose)).code
        except ExecServerError as error:
            self.failure = error

    async def _take(self, output: Output) -> None:
        self._unseen.add(output.data)

    def _lose(self, size: int) -> None:
        self._unseen.lost += size


class Processes:
    """Those of one session, by the numbers that the model uses."""

    def __init__(self) -> None:
        self._by_id: dict[int, Running] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    async def add(self, running: Running) -> int:
        """Take a process, and return its number."""
        number = allocate_pty_process_id(set(self._by_id))
        oldest = self._one_too_many()
        self._by_id[number] = running
        if oldest is not None:
            await oldest.end()
        return number

    def get(self, number: int) -> Running:
        """Return a process.  Raises `PtySessionNotFoundError`."""
        if number not in self._by_id:
            raise PtySessionNotFoundError(session_id=number)
        return self._by_id[number]

    async def update(self, number: int, seconds: float, max_output_tokens: int | None) -> PtyExecUpdate:
        """Return what a process printed until it ended or some seconds were over; an ended one is forgotten.

        Raises the error of a connection that was lost.
        """
        running = self.get(number)
        running.last_used = time.monotonic()
        await running.wait(seconds)
        text, tokens = truncate_text_by_tokens(running.take(), max_output_tokens)
        if running.done:
            self._by_id.pop(number, None)
            if running.failure is not None and not text:
                raise running.failure
        return PtyExecUpdate(
            process_id=number if number in self._by_id else None,
            output=text.encode("utf-8", "replace"),
            exit_code=running.exit_code,
            original_token_count=tokens,
        )

    async def end_all(self) -> None:
        """End them all."""
        ending = [*self._by_id.values()]
        self._by_id.clear()
        await asyncio.gather(*(each.end() for each in ending))

    def _one_too_many(self) -> Running | None:
        if len(self._by_id) < PTY_PROCESSES_MAX:
            return None
        meta = [(number, each.last_used, each.done) for number, each in self._by_id.items()]
        number = process_id_to_prune_from_meta(meta)
        return None if number is None else self._by_id.pop(number)
