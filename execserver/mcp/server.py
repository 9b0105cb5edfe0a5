"""Serves one MCP client over stdin and stdout.

Lines wait in an inbox (`transports.inbox`, with its limits); one greenlet handles them in order.  Calls of
the tool run in greenlets of their own and delay no other line; they go on if the client reads nothing.  The
conversation is over when the input ends, when stdout is closed, or when the client starts it wrongly.  What
was received before the end of the input is still handled.
"""

from __future__ import annotations

from execserver.handlers.guard import guarded
from execserver.mcp.elicitation import Prompts
from execserver.mcp.jsonrpc import INVALID_REQUEST, NO_ID, encode_error, encode_failure
from execserver.mcp.lines import TOO_LONG
from execserver.mcp.running_calls import Run, RunningCalls
from execserver.mcp.session import Answered, CancelCall, Send, Session, StartCall, Step, WrongStart
from execserver.protocol.errors import RpcError
from execserver.transports.inbox import Inbox
from execserver.transports.transport import Transport


class ShellToolServer:
    """One client.  Its transport delivers what arrives; a greenlet calls `serve`."""

    def __init__(self, transport: Transport, version: str, run: Run) -> None:
        """`transport` delivers TOO_LONG in place of a line it dropped; `run` runs a call."""
        self._transport = transport
        self._outbox = transport.outbox
        self._session = Session(version)
        self._prompts = Prompts(self._outbox.send)
        self._calls = RunningCalls(run, self._prompts, self._outbox)
        self._inbox = Inbox(transport)
        self._wrong: WrongStart | None = None

    def receive(self, messages: list[bytes]) -> None:
        """Take lines that arrived.  Called in the event loop."""
        self._inbox.receive(messages)

    def ended(self) -> None:
        """Take the end: no line can come any more.  Called in the event loop, perhaps more than once."""
        self._inbox.end()

    def serve(self) -> str | None:
        """Handle lines until the conversation is over; return what was wrong with it, or None."""
        while not self._outbox.closed and self._inbox.wait():
            self._inbox.handle_all(self._handle)
            self._outbox.flush()
            if self._wrong is not None:
                return self._wrong.reason
        wrong = self._session.ended()
        return None if wrong is None else wrong.reason

    def close(self, timeout_s: float) -> None:
        """End everything that runs for this client, in at most about `timeout_s` seconds."""
        self._prompts.close()
        self._calls.close(timeout_s)

    def _handle(self, line: bytes) -> bool:
        """Handle one line; return whether the conversation is over."""
        step = self._step(line)
        if isinstance(step, WrongStart):
            self._wrong = step
        else:
            self._do(step)
        return self._wrong is not None or self._outbox.closed

    def _step(self, line: bytes) -> Step | None:
        if line is TOO_LONG:
            return Send(encode_failure(NO_ID, INVALID_REQUEST, "Invalid Request: the line is too long"))
        try:
            return guarded("a line", lambda: self._session.handle(line))
        except RpcError as error:
            return Send(encode_error(NO_ID, error))

    def _do(self, step: Step | None) -> None:
        if isinstance(step, Send):
            self._outbox.send(step.message)
        elif isinstance(step, StartCall):
            if not self._inbox.over:  # it would be ended at once
                self._calls.start(step)
        elif isinstance(step, CancelCall):
            self._calls.cancel(step.key, step.reason)
        elif isinstance(step, Answered):
            self._prompts.answered(step.key, step.answer)
