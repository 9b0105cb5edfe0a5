"""Questions to the person behind the client (shell tool contract, section 7).

A question goes out as a request with the next number and stays open until it is answered, or until its call
ends, which withdraws it.  At `MAX_OPEN` open questions further ones wait in line, so that a loop in a script
cannot bury the person; at `MAX_IN_LINE` of those a further one fails at once.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gevent.event import Event
from gevent.hub import get_hub

from execserver.mcp.jsonrpc import Key, encode_notification, encode_request
from execserver.mcp.quoting import quote_cut, visible_line

MAX_OPEN = 64
MAX_IN_LINE = 1024

_TITLE = "Execution Permission Request"
_REASON = "Optional reason for allowing or denying execution"
_SCHEMA = {
    "type": "object",
    "title": _TITLE,
    "properties": {"reason": {"type": "string", "description": _REASON}},
}


class Question(NamedTuple):
    """A program that wants to run: its absolute path, its whole argv, and its working directory.

    The texts are decoded with surrogateescape.
    """

    file: str
    argv: list[str]
    workdir: str


class Answer(enum.Enum):
    """What was answered.  FAILED: an error, a word that is no answer, or nobody left to ask."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    FAILED = "failed"


# Blocks the greenlet until there is an answer.  Killing the greenlet withdraws the question.
Ask = Callable[[Question], Answer]


def message_of(question: Question) -> str:
    """Return the question as the person reads it.

    argv[0] is shown where it is another name than the file's: the program will hear that name.
    """
    name = question.argv[0] if question.argv else ""
    # An empty name is none that a program could be taken for: outside it hears its path.
    is_own = not name or name.rpartition("/")[2] == question.file.rpartition("/")[2]
    alias = "" if is_own else f" under the name `{quote_cut(name)}`"
    command = visible_line(question.file, question.argv[1:])
    return f"Allow agent to run `{command}`{alias} in `{quote_cut(question.workdir)}`?"


class _Prompt:
    """One question on its way; `number` is None while it waits in line, `answer` counts once it is done."""

    __slots__ = ("answer", "done", "message", "number", "owner")

    def __init__(self, message: str, owner: CallPrompts) -> None:
        self.message = message
        self.owner = owner
        self.number: int | None = None
        self.answer = Answer.FAILED
        self.done = Event()


class Prompts:
    """The questions of one client, of all its calls."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._next_number = 0
        self._open: dict[Key, _Prompt] = {}
        self._line: deque[_Prompt] = deque()
        self._closed = False
        self._due = False  # `_let_in` will be called

    def answered(self, key: Key, answer: Answer) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for any more is dropped."""
        prompt = self._open.pop(key, None)
        if prompt is not None:
            prompt.answer = answer
            prompt.done.set()
            self._let_in_soon()

    def close(self) -> None:
        """Fail all questions: the client is gone.  Nothing is sent any more."""
        self._closed = True
        for prompt in (*self._open.values(), *self._line):
            prompt.done.set()
        self._open.clear()
        self._line.clear()

    def ask(self, owner: CallPrompts, question: Question) -> Answer:
        """Ask, and block until there is an answer; FAILED without asking where it cannot be asked."""
        if self._closed or owner.closed or len(self._line) >= MAX_IN_LINE:
            return Answer.FAILED
        prompt = _Prompt(message_of(question), owner)
        self._line.append(prompt)
        self._let_in()
        try:
            prompt.done.wait()
            return prompt.answer
        finally:
            self._forget(prompt)

    def withdraw(self, owner: CallPrompts) -> None:
        """Take back all questions of a call; who waits for them gets FAILED."""
        for prompt in [each for each in (*self._open.values(), *self._line) if each.owner is owner]:
            self._forget(prompt)
            prompt.done.set()

    def _let_in_soon(self) -> None:
        """Let in who waits, once everybody who leaves at this moment has left."""
        if self._line and not self._due:
            self._due = True
            get_hub().loop.run_callback(self._let_in)

    def _let_in(self) -> None:
        self._due = False
        while self._line and len(self._open) < MAX_OPEN:
            prompt = self._line.popleft()
            number = prompt.number = self._next_number
            self._next_number += 1
            self._open[number] = prompt
            params = {
                "_meta": {"progressToken": number},
                "message": prompt.message,
                "requestedSchema": _SCHEMA,
            }
            self._send(encode_request(number, "elicitation/create", params))

    def _forget(self, prompt: _Prompt) -> None:
        """Drop a question wherever it is; the client is told if it has it before it."""
        if prompt.number is None:
            if prompt in self._line:
                self._line.remove(prompt)
        elif self._open.pop(prompt.number, None) is not None:
            reason = "the call this question belongs to has ended"
            self._send(
                encode_notification("notifications/cancelled", {"requestId": prompt.number, "reason": reason})
            )
            self._let_in_soon()


class CallPrompts:
    """The questions of one call, to be withdrawn together."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self.closed = False

    def ask(self, question: Question) -> Answer:
        """Ask, as `Ask` says."""
        return self._prompts.ask(self, question)

    def close(self) -> None:
        """Withdraw what is open and ask nothing any more."""
        self.closed = True
        self._prompts.withdraw(self)
