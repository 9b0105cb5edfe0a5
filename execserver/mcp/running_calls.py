"""The calls of one client that run or wait for their turn.

`MAX_RUNNING` calls run side by side; further ones wait in order, and their call timers do not run meanwhile.
At `MAX_WAITING` waiting calls, or `WAITING_BYTES` of their commands, a further one is refused.  A call counts
as running until there is room for its answer, so a client that reads nothing soon starts nothing new.

An id is taken until its call is over: a second call with the same id is refused and does not affect the
first.  A cancelled call is never answered; its id is free again once everything of the call has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gevent import Greenlet, joinall, killall
from gevent.event import Event

from execserver.handlers.guard import guarded
from execserver.mcp.elicitation import Ask, CallPrompts, Prompts
from execserver.mcp.jsonrpc import INVALID_REQUEST, Key, encode_error, encode_failure, encode_result
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.session import StartCall
from execserver.mcp.tool import INTERNAL_ERROR, ExecParams, ExecResult
from execserver.protocol.errors import RpcError
from execserver.services.clients.sink import MessageSink

_log = logging.getLogger(__name__)

MAX_RUNNING = 32
MAX_WAITING = 1024
WAITING_BYTES = 16 * 1024 * 1024

# Runs one call; raises RpcError if there is no result.  Once the event is set the call ends soon.
Run = Callable[[ExecParams, SandboxState | None, Ask, Event], ExecResult]


class _Call:
    """One call; `greenlet` is None while it waits for its turn."""

    __slots__ = ("cancelled", "greenlet", "order", "prompts")

    def __init__(self, order: StartCall, prompts: CallPrompts) -> None:
        self.order = order
        self.prompts = prompts
        self.cancelled = Event()
        self.greenlet: Greenlet[[_Call], None] | None = None

    @property
    def size(self) -> int:
        return len(self.order.params.command) + len(self.order.params.workdir)

    def cancel(self) -> None:
        self.cancelled.set()
        self.prompts.close()


class RunningCalls:
    """Starts, cancels and answers calls."""

    def __init__(self, run: Run, prompts: Prompts, sink: MessageSink) -> None:
        self._run = run
        self._prompts = prompts
        self._sink = sink
        self._running: dict[Key, _Call] = {}
        self._waiting: dict[Key, _Call] = {}
        self._waiting_bytes = 0
        self._closed = False

    def start(self, order: StartCall) -> None:
        """Start a call, or let it wait, or answer with the reason for refusing it."""
        refusal = self._refusal(order.id.key)
        if refusal is not None:
            self._sink.send(encode_failure(order.id.text, *refusal))
            return
        call = _Call(order, CallPrompts(self._prompts))
        self._waiting[order.id.key] = call
        self._waiting_bytes += call.size
        self._let_in()

    def cancel(self, key: Key, reason: str | None) -> None:
        """End a call and everything of it, without an answer; do nothing for an unknown id."""
        if key in self._waiting:
            self._take_from_line(key)
        elif key in self._running:
            _log.info("a call was cancelled: %s", reason or "no reason given")
            self._running[key].cancel()

    def close(self, timeout_s: float) -> None:
        """End all calls and wait for them, for at most `timeout_s` seconds; nothing is answered any more."""
        self._closed = True
        self._waiting.clear()
        for call in self._running.values():
            call.cancel()
        greenlets = [call.greenlet for call in self._running.values() if call.greenlet is not None]
        # Each call ends its own processes; the shutdown of the spawner ends what is left after the time-out.
        joinall(greenlets, timeout=timeout_s)
        killall(greenlets, block=False)

    def _refusal(self, key: Key) -> tuple[int, str] | None:
        if key in self._running or key in self._waiting:
            return INVALID_REQUEST, "Invalid Request: a call with this id is running"
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes > WAITING_BYTES:
            return INTERNAL_ERROR, f"too many calls: {MAX_RUNNING} are running, {len(self._waiting)} wait"
        return None

    def _let_in(self) -> None:
        while self._waiting and len(self._running) < MAX_RUNNING and not self._closed:
            key = next(iter(self._waiting))
            call = self._take_from_line(key)
            self._running[key] = call
            call.greenlet = Greenlet(self._serve, call)
            call.greenlet.start()

    def _take_from_line(self, key: Key) -> _Call:
        call = self._waiting.pop(key)
        self._waiting_bytes -= call.size
        return call

    def _serve(self, call: _Call) -> None:
        try:
            answer = self._answer(call)
            if not self._closed and not call.cancelled.is_set() and self._sink.wait_for_room():
                self._send(call, answer)
        finally:
            call.prompts.close()
            del self._running[call.order.id.key]
            self._let_in()

    def _send(self, call: _Call, answer: bytes) -> None:
        if not call.cancelled.is_set():  # it may have been cancelled while it waited for room
            self._sink.send(answer)

    def _answer(self, call: _Call) -> bytes:
        order = call.order
        try:
            result = guarded(
                "tools/call",
                lambda: self._run(order.params, order.state, call.prompts.ask, call.cancelled),
            )
        except RpcError as error:
            return encode_error(order.id.text, error)
        finally:
            call.prompts.close()  # before the answer: a prompt must not outlive its call
        return encode_result(order.id.text, result.to_json())
