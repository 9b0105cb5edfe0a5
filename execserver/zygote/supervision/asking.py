"""The supervisor's end of the question socket: approval prompts go out, answers come back.

Nothing here waits, neither for the socket nor for an answer.
"""

from __future__ import annotations

import os

from execserver.zygote.records import RecordError
from execserver.zygote.supervision.event_loop import READABLE, WRITABLE
from execserver.zygote.supervision.records import (
    FAILED,
    Answer,
    FrameReader,
    Question,
    ShellEnded,
    Withdrawn,
    encode_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.records import Message
    from execserver.zygote.supervision.trap.callers import Execution

    Answered = Callable[[int], None]

_PIECE_BYTES = 64 * 1024
MOST_UNSENT_BYTES = 32 * 1024 * 1024  # a server that leaves that much unread is asked nothing more


class Asking:
    """The open approval prompts; owns the socket's descriptor, which it makes non-blocking.

    When the socket ends, all open prompts and all later ones are answered with FAILED.
    """

    def __init__(self, descriptor: int, loop: EventLoop) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._open: dict[int, Answered] = {}
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._last = 0
        os.set_blocking(descriptor, False)
        loop.add(descriptor, self._ready)

    @property
    def has_ended(self) -> bool:
        """True when the server has ended the socket."""
        return self._descriptor < 0

    def ask(self, execution: Execution, answered: Answered) -> int:
        """Ask whether a program may run; return the prompt's number.

        `answered` is called once with the answer, perhaps before this returns.
        """
        self._last += 1
        question = Question(self._last, execution.file, execution.argv, execution.workdir)
        # Before anything is sent: a socket that fails answers all open prompts at once, this one among them.
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
        """Report that nobody waits for an answer any more; a number that was answered is no error."""
        # Forgotten here first, so an answer that crosses this on its way finds nobody.
        if self._open.pop(number, None) is not None and self._descriptor >= 0:
            self._send(Withdrawn(number))

    def tell_shell_ended(self) -> None:
        """Report that the shell has ended and others live on."""
        if self._descriptor >= 0:
            self._send(ShellEnded())

    def _send(self, message: Message) -> None:
        self._unsent += encode_message(message)
        self._write()

    def _ready(self) -> None:
        # Called for both directions and for errors; what cannot be done now raises BlockingIOError below.
        if self._unsent:
            self._write()
        if self._descriptor >= 0:  # a failed write has closed it
            self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
            messages = self._frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, RecordError):
            data, messages = b"", []  # a malformed message ends the socket: nothing behind it can be trusted
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
        # Watched for writing only while something is unsent, or the event loop would never sleep.
        self._loop.add(self._descriptor, self._ready, READABLE | (WRITABLE if self._unsent else 0))

    def _settle(self, number: int, action: int) -> None:
        answered = self._open.pop(number, None)
        if answered is not None:
            answered(action)

    def _end(self) -> None:
        if self._descriptor >= 0:
            self._loop.drop(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._unsent.clear()
            # A copy of the keys: what is answered may ask, or withdraw, something else.
            for number in list(self._open):
                self._settle(number, FAILED)
