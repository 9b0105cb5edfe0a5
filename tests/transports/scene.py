"""One connection over fakes: a carrier in memory, and handlers that a test scripts.

The outbox is the real one, writing lines into a socket; the rest of the carrier and everything behind the
look-up of a method is fake.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import gevent
import msgspec
import pytest
from gevent.event import Event

from execserver.access.identity import NOBODY
from execserver.core.connection import ConnectionRules
from execserver.handlers.context import Call
from execserver.handlers.replies import Answer, InTurn, Later, Result
from execserver.protocol.envelope import Request
from execserver.services.clients.questions import Questions
from execserver.services.clients.sink import MessageSink
from execserver.transports import connection as connection_module
from execserver.transports.connection import connection_over
from execserver.transports.outbox import Outbox
from execserver.transports.stdio import LineFraming
from tests.support.greenlets import turns
from tests.support.waiting import wait_until
from tests.transports.wires import take

Handler = Callable[[Any], Answer]
Play = Callable[..., "Scene"]


# Handlers that the event loop calls itself.
NEVER_WAITING: set[Handler] = set()


def at_once(handler: Handler) -> Handler:
    """Let the event loop call a handler, which must not block."""
    NEVER_WAITING.add(handler)
    return handler


def result(value: object = None) -> msgspec.Raw:
    """Return a result of any JSON value."""
    return msgspec.Raw(json.dumps(value).encode())


class FakeTransport:
    """A carrier in memory: notes what it is told; what is sent goes through a real outbox."""

    malformed_prefix = "cannot read"

    def __init__(self, sock: socket.socket) -> None:
        self.outbox = Outbox(sock.fileno(), LineFraming(), lambda: self.events.append("broken"))
        self.events: list[str] = []
        self.failing_resume = False

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")
        if self.failing_resume:
            raise RuntimeError("the carrier is broken")

    def close(self, code: int, reason: str) -> None:
        self.events.append(f"close {code} {reason}")
        self.outbox.finish()


class FakeContext:
    """A connection context that notes its end; the rules are real."""

    def __init__(self, events: list[str], concurrent_requests: int) -> None:
        self.rules = ConnectionRules()
        self.questions = Questions(cast(MessageSink, None))  # asks nothing
        self.concurrent_requests = concurrent_requests
        self.identity = NOBODY
        self._events = events

    def close(self) -> None:
        self._events.append("context closed")


class FakeCall:
    """A call that notes when a session it holds is let go; from the start it holds one."""

    def __init__(
        self, handlers: dict[str, Handler], concurrent_requests: int = 0, observer: object = None
    ) -> None:
        self.handlers = handlers
        self.handled_alone = 0
        self.services = SimpleNamespace(observer=observer, busy_poll=self)
        self.events: list[str] = []
        self.connection = FakeContext(self.events, concurrent_requests)
        self.holds_session = True
        self.session_id = "session"

    def handled(self) -> None:
        """Note a request that came alone and was handled, as the server's `BusyPoll` does."""
        self.handled_alone += 1

    def detach(self) -> None:
        if self.holds_session:
            self.holds_session = False
            self.events.append("detach")


class Scene:
    """The connection under test with its fakes."""

    def __init__(
        self,
        ours: socket.socket,
        theirs: socket.socket,
        handlers: dict[str, Handler],
        concurrent_requests: int = 0,
        observer: object = None,
    ) -> None:
        self.peer = theirs
        self.transport = FakeTransport(ours)
        self.outbox = self.transport.outbox
        self.call = FakeCall(handlers, concurrent_requests, observer)
        self.over = Event()
        self.connection = connection_over(self.transport, cast(Call, self.call), self.over.set)
        self._received = b""
        self._next_id = 0
        turns()

    @property
    def events(self) -> list[str]:
        """What the carrier was told."""
        return self.transport.events

    @property
    def ends(self) -> list[str]:
        """What was let go or closed behind the connection."""
        return self.call.events

    def receive(self, *messages: bytes) -> None:
        """Let messages arrive together, in the event loop as from a real carrier; returns when that ran."""
        self.in_loop(lambda: self.connection.receive(list(messages)))

    def ask(self, method: str, params: object = None, *more: str) -> int:
        """Let a request, and more of them without params, arrive together; return the id of the first."""
        first = self._next_id + 1
        texts = []
        for name, value in ((method, params), *((name, None) for name in more)):
            self._next_id += 1
            texts.append(json.dumps({"id": self._next_id, "method": name, "params": value}).encode())
        self.receive(*texts)
        return first

    def end(self) -> None:
        """Let the carrier report the end of the client, in the event loop."""
        self.in_loop(self.connection.ended)

    def in_loop(self, act: Callable[[], None]) -> None:
        """Run something in the event loop, then let everything run that can."""
        gevent.get_hub().loop.run_callback(act)
        turns()

    def answers(self) -> list[Any]:
        """Return the messages that have come to the peer since the last look."""
        self._received += take(self.peer)
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_for(self, count: int) -> list[Any]:
        """Wait for as many messages and return them."""
        got: list[Any] = []

        def enough() -> bool:
            got.extend(self.answers())
            return len(got) >= count

        wait_until(enough, pause=gevent.sleep)
        assert len(got) == count
        return got

    def finished(self) -> bool:
        """Wait until the connection has ended."""
        return bool(self.over.wait(20))


@contextmanager
def scene(
    monkeypatch: pytest.MonkeyPatch,
    concurrent_requests: int = 0,
    observer: object = None,
    **handlers: Handler,
) -> Iterator[Scene]:
    """Serve one connection with these handlers, which get the decoded params.

    They may block, but for those in `NEVER_WAITING`.
    """

    def dispatch(call: Call, request: Request) -> Answer:
        params = json.loads(bytes(request.params))
        handler = cast(FakeCall, call).handlers[request.method]
        return handler(params) if handler in NEVER_WAITING else InTurn(partial(handler, params))

    monkeypatch.setattr(connection_module, "dispatch", dispatch)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        made = Scene(ours, theirs, handlers, concurrent_requests, observer)
        try:
            yield made
        finally:
            made.end()
            made.outbox.close()
            assert made.finished(), "the connection did not end with its client"


class Gate:
    """A handler that blocks until it is let go."""

    def __init__(self) -> None:
        self._open = Event()
        self.entered = 0

    def wait(self, params: object = None) -> Result:
        self.entered += 1
        self._open.wait()
        return result(params)

    def later(self, params: object) -> Later:
        return Later(partial(self.wait, params))

    def let_go(self) -> None:
        self._open.set()
        turns()


def ids(messages: list[Any]) -> list[int]:
    """Return the ids of messages."""
    return [message["id"] for message in messages]
