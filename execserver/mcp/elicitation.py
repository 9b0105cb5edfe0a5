"""Approval prompts: MCP elicitations for the user of the client (shell tool contract).

A prompt goes out as a request with the next number.  It stays open until it is answered, or until its call
ends, which withdraws it.  At `MAX_OPEN` open prompts further ones wait in line, so that a loop in a script
cannot flood the user; at `MAX_IN_LINE` waiting ones a further one fails at once.
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
_HOST_TITLE = "Network Permission Request"
_HOST_REASON = "Optional reason for allowing or denying the connection"


def _schema(title: str, reason: str) -> dict[str, object]:
    return {
        "type": "object",
        "title": title,
        "properties": {"reason": {"type": "string", "description": reason}},
    }


_SCHEMAS = {False: _schema(_TITLE, _REASON), True: _schema(_HOST_TITLE, _HOST_REASON)}


class Question(NamedTuple):
    """A program that wants to run: its absolute path, its whole argv, and its working directory.

    The texts were decoded with surrogateescape.
    """

    file: str
    argv: list[str]
    workdir: str


class HostQuestion(NamedTuple):
    """A host that a command wants to connect to; `how` is the protocol in the words of the rules."""

    host: str
    port: int
    how: str


class Answer(enum.Enum):
    """The answer to a prompt.  FAILED: an error, an unknown action, or no user left to ask."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    FAILED = "failed"


# Blocks the greenlet until there is an answer.  Killing the greenlet withdraws the prompt.
AskAboutProgram = Callable[[Question], Answer]
Ask = Callable[[Question | HostQuestion], Answer]


def message_of(question: Question | HostQuestion) -> str:
    """Return the text of a prompt.

    argv[0] is shown if it differs from the file's name: the program will get that name.
    """
    if isinstance(question, HostQuestion):
        host = f"[{question.host}]" if ":" in question.host else question.host
        return f"Allow agent to connect to `{quote_cut(f'{question.how}://{host}:{question.port}')}`?"
    name = question.argv[0] if question.argv else ""
    # An empty name misleads nobody: outside the sandbox the program gets its path instead.
    is_own = not name or name.rpartition("/")[2] == question.file.rpartition("/")[2]
    alias = "" if is_own else f" under the name `{quote_cut(name)}`"
    command = visible_line(question.file, question.argv[1:])
    return f"Allow agent to run `{command}`{alias} in `{quote_cut(question.workdir)}`?"


class _Prompt:
    """One question on its way; `number` is None while it waits in line, `answer` counts once it is done."""

    __slots__ = ("answer", "done", "message", "number", "owner", "schema")

    def __init__(self, question: Question | HostQuestion, owner: CallPrompts) -> None:
        self.message = message_of(question)
        self.schema = _SCHEMAS[isinstance(question, HostQuestion)]
        self.owner = owner
        self.number: int | None = None
        self.answer = Answer.FAILED
        self.done = Event()


class Prompts:
    """The approval prompts of one client, for all its calls."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._next_number = 0
        self._open: dict[Key, _Prompt] = {}
        self._line: deque[_Prompt] = deque()
        self._closed = False
        self._due = False  # the loop will call `_let_in`

    def answered(self, key: Key, answer: Answer) -> None:
        """Pass an answer to the greenlet that waits for it; drop it if nobody waits any more."""
        prompt = self._open.pop(key, None)
        if prompt is not None:
            prompt.answer = answer
            prompt.done.set()
            self._let_in_soon()

    def close(self) -> None:
        """Fail all prompts: the client is gone.  Nothing is sent any more."""
        self._closed = True
        for prompt in (*self._open.values(), *self._line):
            prompt.done.set()
        self._open.clear()
        self._line.clear()

    def ask(self, owner: CallPrompts, question: Question | HostQuestion) -> Answer:
        """Ask the user and block until there is an answer; return FAILED at once if nobody can be asked."""
        if self._closed or owner.closed or len(self._line) >= MAX_IN_LINE:
            return Answer.FAILED
        prompt = _Prompt(question, owner)
        self._line.append(prompt)
        self._let_in()
        try:
            prompt.done.wait()
            return prompt.answer
        finally:  # also when this greenlet is killed: then the client must withdraw the prompt
            self._forget(prompt)

    def withdraw(self, owner: CallPrompts) -> None:
        """Withdraw all prompts of a call; the greenlets that wait for them get FAILED."""
        for prompt in [each for each in (*self._open.values(), *self._line) if each.owner is owner]:
            self._forget(prompt)
            prompt.done.set()

    def _let_in_soon(self) -> None:
        """Send waiting prompts in the next turn of the loop: a call that ends withdraws its own first."""
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
                "requestedSchema": prompt.schema,
            }
            self._send(encode_request(number, "elicitation/create", params))

    def _forget(self, prompt: _Prompt) -> None:
        """Drop a prompt wherever it is, and withdraw it if the client still shows it."""
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
    """The prompts of one call, which are withdrawn together."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self.closed = False

    def ask(self, question: Question | HostQuestion) -> Answer:
        """Ask, as `Ask` says."""
        return self._prompts.ask(self, question)

    def close(self) -> None:
        """Withdraw what is open, and ask nothing any more."""
        self.closed = True
        self._prompts.withdraw(self)
