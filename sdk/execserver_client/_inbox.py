"""Messages that have arrived and that nobody has received yet, bounded by stopping to read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from execserver.client.errors import ExecServerError

_MOST_BYTES: Final = 1024 * 1024
_MOST_MESSAGES: Final = 1024


class Inbox:
    """The messages of one connection.

    Above 1 MiB or 1,024 messages `pause` is called, and `resume` once half of them are taken; what one read
    brings is kept in any case.
    """

    def __init__(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        self._pause = pause
        self._resume = resume
        self._messages: deque[bytes] = deque()
        self._held = 0  # bytes of them
        self._is_paused = False
        self._has_ended = False
        self._error: ExecServerError | None = None
        self._receiver: asyncio.Future[None] | None = None

    def put(self, message: bytes) -> None:
        """Keep a message."""
        self._messages.append(message)
        self._held += len(message)

    def settle(self) -> None:
        """Note that all of one read was put."""
        if not self._is_paused and self._is_above(_MOST_BYTES, _MOST_MESSAGES):
            self._is_paused = True
            self._pause()
        self._wake()

    def end(self, error: ExecServerError | None) -> None:
        """Note that nothing more comes, and why, None for an orderly end.  What is there can be received."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
        self._wake()

    async def get(self) -> bytes | None:
        """Return the next message, None after an orderly end.  Raises the error of another one.

        There is one receiver.
        """
        while not self._messages:
            if self._error is not None:
                raise type(self._error)(str(self._error))  # a fresh one: raising adds to its traceback
            if self._has_ended:
                return None
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self._messages.popleft()
        self._held -= len(message)
        if self._is_paused and not self._is_above(_MOST_BYTES // 2, _MOST_MESSAGES // 2):
            self._is_paused = False
            self._resume()
        return message

    def let_go(self) -> None:
        """Drop what nobody received, and the callbacks."""
        self._messages.clear()
        self._held = 0
        self._is_paused = False
        self._pause = self._resume = _nothing

    def _is_above(self, most_bytes: int, most_messages: int) -> bool:
        return self._held > most_bytes or len(self._messages) > most_messages

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)


def _nothing() -> None:
    pass
