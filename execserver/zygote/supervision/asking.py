"""The supervisor's end of the question socket: questions go out, answers come back, neither is waited for."""

from __future__ import annotations

import os

from execserver.zygote.records import RecordError
from execserver.zygote.supervision.records import (
    FAILED,
    Answer,
    FrameReader,
    Question,
    Withdrawn,
    encode_message,
)
from execserver.zygote.supervision.watch import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.zygote.supervision.callers import Execution
    from execserver.zygote.supervision.records import Message
    from execserver.zygote.supervision.watch import Watch

    Answered = Callable[[int], None]

_PIECE_BYTES = 64 * 1024
MOST_UNSENT_BYTES = 32 * 1024 * 1024  # a server that does not read that much is asked nothing more


class Asking:
    """Open questions; owns the socket's descriptor, which does not block.

    When the socket ends, every open question and all later ones are answered with FAILED.
    """

    def __init__(self, descriptor: int, watch: Watch) -> None:
        self._descriptor = descriptor
        self._watch = watch
        self._open: dict[int, Answered] = {}
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._last = 0
        os.set_blocking(descriptor, False)
        watch.add(descriptor, self._ready)

    def ask(self, execution: Execution, answered: Answered) -> int:
        """Ask whether a program may run; return the question's number.

        `answered` is called once, later or at once, with what the server says.
        """
        self._last += 1
        question = Question(self._last, execution.file, execution.argv, execution.workdir)
        self._open[self._last] = answered
        if self._descriptor < 0 or len(self._unsent) > MOST_UNSENT_BYTES:
            self._settle(self._last, FAILED)
        else:
            try:
                self._send(question)
            except RecordError:
                self._settle(self._last, FAILED)  # too long to be asked about
        return self._last

    def withdraw(self, number: int) -> None:
        """Say that nobody waits for an answer any more."""
        if self._open.pop(number, None) is not None and self._descriptor >= 0:
            self._send(Withdrawn(number))

    def _send(self, message: Message) -> None:
        self._unsent += encode_message(message)
        self._write()

    def _ready(self) -> None:
        if self._unsent:
            self._write()
        if self._descriptor >= 0:
            self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
            messages = self._frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, RecordError):
            data, messages = b"", []
        for message in messages:
            if isinstance(message, Answer):
                self._settle(message.number, message.action)
        if not data:
            self._end()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._descriptor, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        self._watch.add(self._descriptor, self._ready, READABLE | (WRITABLE if self._unsent else 0))

    def _settle(self, number: int, action: int) -> None:
        answered = self._open.pop(number, None)
        if answered is not None:
            answered(action)

    def _end(self) -> None:
        if self._descriptor >= 0:
            self._watch.drop(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._unsent.clear()
            for number in list(self._open):
                self._settle(number, FAILED)
