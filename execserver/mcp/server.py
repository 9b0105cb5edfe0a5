"""Serves one MCP client over stdin and stdout.

Lines arrive in the event loop and wait in an inbox; one greenlet handles them in order.  Calls of the tool
run in greenlets of their own and delay nobody.  The conversation is over when the input ends, when stdout is
closed, or when the client began it wrongly; what was received before the end of the input is still handled.

Bounds: past `INBOX_BYTES` of unhandled lines reading stops; past `REPLY_BYTES` of unsent answers handling
stops.  A client that does not read its answers so comes to a halt, and nobody else: what runs goes on.
"""

from __future__ import annotations

from collections import deque

from gevent import sleep
from gevent.event import Event

from execserver.handlers.guard import guarded
from execserver.mcp.elicitation import Prompts
from execserver.mcp.jsonrpc import INVALID_REQUEST, NO_ID, encode_error, encode_failure
from execserver.mcp.lines import TOO_LONG
from execserver.mcp.running_calls import Run, RunningCalls
from execserver.mcp.session import Answered, CancelCall, Send, Session, StartCall, Step, WrongStart
from execserver.protocol.errors import RpcError
from execserver.transports.transport import Transport

INBOX_BYTES = 1024 * 1024
REPLY_BYTES = 1024 * 1024
_TURN_LINES = 64  # after as many other greenlets get a turn


class ShellToolServer:
    """One client.  A transport delivers to it what arrives; a greenlet calls `serve`."""

    def __init__(self, transport: Transport, version: str, run: Run) -> None:
        """`transport` gives TOO_LONG for a line it dropped; `run` runs a call."""
        self._transport = transport
        self._outbox = transport.outbox
        self._session = Session(version)
        self._prompts = Prompts(self._outbox.send)
        self._calls = RunningCalls(run, self._prompts, self._outbox)
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._paused = False
        self._over = False  # no further line comes in
        self._news = Event()

    def receive(self, messages: list[bytes]) -> None:
        """Take lines that arrived.  Called in the event loop."""
        self._inbox.extend(messages)
        self._inbox_bytes += sum(map(len, messages))
        self._news.set()
        if self._inbox_bytes > INBOX_BYTES and not self._over:
            self._paused = True
            self._transport.pause()

    def ended(self) -> None:
        """Note that no line can come any more.  Called in the event loop, perhaps more than once."""
        self._over = True
        self._news.set()

    def serve(self) -> str | None:
        """Handle lines in this greenlet until the conversation is over; return what was wrong with it."""
        while not (self._over and not self._inbox) and not self._outbox.closed:
            self._news.wait()
            self._news.clear()
            wrong = self._handle_inbox()
            self._outbox.flush()
            if wrong is not None:
                return wrong.reason
        wrong = self._session.ended()
        return None if wrong is None else wrong.reason

    def close(self, timeout_s: float) -> None:
        """End all that runs for this client, in at most about `timeout_s` seconds."""
        self._prompts.close()
        self._calls.close(timeout_s)

    def _handle_inbox(self) -> WrongStart | None:
        turn = _TURN_LINES
        while self._inbox and not self._outbox.closed:
            line = self._inbox.popleft()
            self._inbox_bytes -= len(line)
            step = self._step(line)
            if isinstance(step, WrongStart):
                return step
            self._do(step)
            if self._paused and self._inbox_bytes <= INBOX_BYTES // 2:
                self._paused = False
                self._transport.resume()
            if self._outbox.queued > REPLY_BYTES:
                self._outbox.wait_for_room()
            turn -= 1
            if not turn:
                turn = _TURN_LINES
                self._outbox.flush()
                sleep(0)
        return None

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
            if not self._over:  # it would be ended at once
                self._calls.start(step)
        elif isinstance(step, CancelCall):
            self._calls.cancel(step.key, step.reason)
        elif isinstance(step, Answered):
            self._prompts.answered(step.key, step.answer)
