"""The server's end of one call's question socket: passes approval prompts on, and sends back the answers.

Each prompt waits in a greenlet of its own, so the user may have many at the same time.  A prompt above the
limits is answered with FAILED at once.  A prompt whose exec caller is gone is withdrawn; if the supervisor is
gone, all are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore

from execserver.mcp.elicitation import Answer, AskAboutProgram, Question
from execserver.zygote.records import RecordError
from execserver.zygote.supervision import records

_log = logging.getLogger(__name__)

WAITING_QUESTIONS = 1024  # of one call, whether the client has them or they wait in line
WAITING_BYTES = 16 * 1024 * 1024  # of their paths and arguments
_PIECE_BYTES = 64 * 1024

_ACTIONS = {
    Answer.ACCEPT: records.ACCEPT,
    Answer.DECLINE: records.DECLINE,
    Answer.CANCEL: records.CANCEL,
    Answer.FAILED: records.FAILED,
}


class Questions:
    """Owns the socket from `start` on.

    Calls `pause` and `resume` around each prompt, and `shell_ended` when others outlive the shell.
    """

    def __init__(
        self,
        sock: socket.socket,
        ask: AskAboutProgram,
        pause: Callable[[], None],
        resume: Callable[[], None],
        shell_ended: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._ask = ask
        self._pause = pause
        self._resume = resume
        self._shell_ended = shell_ended
        self._waiting: dict[int, gevent.Greenlet[[records.Question], None]] = {}
        self._bytes: dict[int, int] = {}
        self._sending = BoundedSemaphore(1)  # two greenlets must not mix the bytes of their answers
        self._reader: gevent.Greenlet[[], None] | None = None

    @property
    def waiting(self) -> int:
        """The number of prompts without an answer."""
        return len(self._waiting)

    def start(self) -> None:
        """Start reading."""
        self._reader = gevent.spawn(self._read)

    def hang_up(self) -> None:
        """Report that the outputs of a shell that has ended are over; no question is answered any more."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the supervisor is gone already

    def close(self) -> None:
        """Withdraw all prompts and close the socket."""
        reader, self._reader = self._reader, None  # once killed it keeps a traceback, which holds this object
        if reader is not None:
            reader.kill()
        for number in list(self._waiting):
            self._withdraw(number)
        self._pause = self._resume = self._shell_ended = (
            _nothing  # they refer to the call, which refers to this object
        )
        self._sock.close()

    def _read(self) -> None:
        frames = records.FrameReader()
        try:
            while data := self._sock.recv(_PIECE_BYTES):
                for message in frames.feed(data):
                    self._take(message)
        except RecordError as error:
            _log.warning("a supervisor asked something that is no question: %s", error)
        except OSError:
            pass  # the supervisor was killed: the same as an end of file
        for number in list(self._waiting):
            self._withdraw(number)

    def _take(self, message: records.Message) -> None:
        if isinstance(message, records.Withdrawn):
            self._withdraw(message.number)
        elif isinstance(message, records.Question):
            self._take_question(message)
        elif isinstance(message, records.ShellEnded):
            self._shell_ended()
        else:
            raise RecordError(f"{message!r} is not for the server")

    def _take_question(self, question: records.Question) -> None:
        number = question.number
        if number in self._waiting:
            raise RecordError(f"two questions of the number {number}")
        size = len(question.file) + len(question.workdir) + sum(map(len, question.argv))
        if len(self._waiting) >= WAITING_QUESTIONS or sum(self._bytes.values()) + size > WAITING_BYTES:
            _log.warning("a command wants to run more programs than a person can be asked about")
            gevent.spawn(self._send, records.Answer(number, records.FAILED))
            return
        self._pause()
        self._bytes[number] = size
        self._waiting[number] = greenlet = gevent.Greenlet(self._put, question)
        greenlet.start()

    def _put(self, question: records.Question) -> None:
        answer = self._ask(_shown(question))
        self._settle(question.number)
        self._send(records.Answer(question.number, _ACTIONS[answer]))

    def _withdraw(self, number: int) -> None:
        greenlet = self._waiting.get(number)
        if greenlet is not None:
            self._settle(number)
            greenlet.kill(block=False)

    def _settle(self, number: int) -> None:
        """Stop waiting for an answer, and let the call timer run again.

        Before the answer is sent: a supervisor that does not read must not stop the timer.
        """
        if self._waiting.pop(number, None) is not None:
            del self._bytes[number]
            self._resume()

    def _send(self, answer: records.Answer) -> None:
        try:
            with self._sending:
                self._sock.sendall(records.encode_message(answer))
        except OSError:
            pass  # the supervisor is gone, and with it the exec caller that waited for the answer


def _nothing() -> None:
    """Do nothing, in place of a callback, since the call is over."""


def _shown(question: records.Question) -> Question:
    return Question(_text(question.file), [_text(word) for word in question.argv], _text(question.workdir))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
