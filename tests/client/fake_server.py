"""A fake: a server in memory that says exactly what a test wants, message by message.

It knows no process and no file.  Requests are answered from a table of functions; what is not in the table
stays unanswered until the test answers it.  Real servers are used in `test_against_server` and `test_resume`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gevent.event import Event
from gevent.queue import Queue

from execserver.client.carriers.transport import Waiting
from execserver.client.errors import ConnectFailed, ExecServerError, TransportClosed, kept

SESSION = "00000000-0000-4000-8000-000000000001"


class Refusal(Exception):
    """Raised by an answering function: the answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message}


class Unanswered(Exception):
    """Raised by an answering function: no answer yet."""


class Request(NamedTuple):
    """What the client asked: on which connection (from 0), under which id."""

    connection: int
    call_id: int | None
    method: str
    params: Any


class FakeCarrier(Waiting):
    """One connection to the fake; the test talks through `push`, `reply` and `drop`."""

    carries_binary = True

    def __init__(self, server: FakeServer, number: int) -> None:
        self.closed = False
        self._server = server
        self._number = number
        self._inbox: Queue[bytes | ExecServerError | None] = Queue()

    def receive(self) -> bytes | None:
        item = self._inbox.get()
        if isinstance(item, ExecServerError):
            raise kept(item)
        return item

    def send(self, message: bytes) -> None:
        if self.closed:
            raise TransportClosed("the fake connection is closed")
        self._server.take(self, self._number, json.loads(message))

    def send_at_once(self, message: bytes) -> bool:
        if self.closed or not self._server.sends_at_once:
            return False
        self.send(message)
        return True

    def close(self) -> None:
        self.closed = True
        self._inbox.put(None)

    def put(self, message: object) -> None:
        """Let the client receive a message; text is passed on as it is."""
        self._inbox.put(message.encode() if isinstance(message, str) else json.dumps(message).encode())

    def push(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.put({"method": method, "params": params})

    def reply(self, call_id: int | None, result: object) -> None:
        """Answer a request."""
        self.put({"id": call_id, "result": result})

    def drop(self, error: ExecServerError | None = None) -> None:
        """End the connection; with `error`, break it."""
        self._inbox.put(error)


class FakeServer:
    """Makes carriers, keeps all requests, answers from `answers` (method -> function of the params)."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Any], object]] = {
            "initialize": lambda params: {"sessionId": params["resumeSessionId"] or SESSION},
            "process/start": lambda params: {"processId": params["processId"]},
            "process/terminate": lambda params: {"running": True},
        }
        self.carriers: list[FakeCarrier] = []
        self.requests: list[Request] = []
        self.unreachable = False
        self.sends_at_once = False
        self._something = Event()

    def open_transport(self, timeout: float) -> FakeCarrier:
        """Make a connection, as the client's carriers do."""
        if self.unreachable:
            raise ConnectFailed("the fake is unreachable")
        transport = FakeCarrier(self, len(self.carriers))
        self.carriers.append(transport)
        return transport

    @property
    def current(self) -> FakeCarrier:
        """The newest connection."""
        return self.carriers[-1]

    def take(self, transport: FakeCarrier, number: int, message: dict[str, Any]) -> None:
        """Note a message of the client and answer it."""
        request = Request(number, message.get("id"), message["method"], message["params"])
        self.requests.append(request)
        self._something.set()
        answer = self.answers.get(request.method)
        if request.call_id is None or answer is None:
            return
        try:
            transport.reply(request.call_id, answer(request.params))
        except Refusal as refusal:
            transport.put({"error": refusal.body, "id": request.call_id})
        except Unanswered:
            pass

    def asked(self, method: str) -> list[Request]:
        """Return the requests for one method so far."""
        return [request for request in self.requests if request.method == method]

    def wait_for(self, method: str, count: int = 1) -> Request:
        """Wait for the `count`-th request for a method and return it."""
        while len(self.asked(method)) < count:
            self._something.clear()
            assert self._something.wait(20), f"no request {count} for {method}: {self.requests}"
        return self.asked(method)[count - 1]


def output(process_id: str, seq: int, data: bytes, stream: str = "stdout") -> dict[str, object]:
    """Return the params of a `process/output`."""
    return {"processId": process_id, "seq": seq, "stream": stream, "chunk": base64.b64encode(data).decode()}


def read_answer(
    chunks: list[tuple[int, bytes]], next_seq: int, *, exit_code: int | None = None, closed: bool = False
) -> dict[str, object]:
    """Return the result of a `process/read`."""
    return {
        "chunks": [
            {"seq": seq, "stream": "stdout", "chunk": base64.b64encode(data).decode()} for seq, data in chunks
        ],
        "nextSeq": next_seq,
        "exited": exit_code is not None,
        "exitCode": exit_code,
        "closed": closed,
        "failure": None,
        "sandboxDenied": False,
    }


def say(fake: FakeServer, seq: int, data: bytes) -> None:
    """Let process `p` print something."""
    fake.current.push("process/output", **output("p", seq, data))


def end(fake: FakeServer, seq: int, code: int = 0) -> None:
    """Let process `p` exit with this seq and close with the next."""
    fake.current.push("process/exited", processId="p", seq=seq, exitCode=code)
    fake.current.push("process/closed", processId="p", seq=seq + 1)


def drop(fake: FakeServer) -> None:
    """Break the connection and wait until the session goes on."""
    before = len(fake.asked("initialized"))
    fake.current.drop()
    fake.wait_for("initialized", before + 1)
