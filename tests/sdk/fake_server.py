"""A fake: a server in memory that says exactly what a test wants, message by message, on asyncio.

As `tests.client.fake_server`: requests are answered from a table of functions, and what is not in the table
stays unanswered until the test answers it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from execserver.client.errors import ConnectFailed, ExecServerError, TransportClosed, kept

SESSION = "00000000-0000-4000-8000-000000000001"


class Refusal(Exception):
    """Raised by an answering function: the answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message}


class Request(NamedTuple):
    """What the client asked: on which connection (from 0), under which id."""

    connection: int
    call_id: int | None
    method: str
    params: Any


class FakeCarrier:
    """One connection to the fake; the test talks through `push`, `reply` and `drop`."""

    carries_binary = True

    def __init__(self, server: FakeServer, number: int) -> None:
        self.closed = False
        self._server = server
        self._number = number
        self._inbox: asyncio.Queue[bytes | ExecServerError | None] = asyncio.Queue()

    async def receive(self) -> bytes | None:
        item = await self._inbox.get()
        if isinstance(item, ExecServerError):
            raise kept(item)
        return item

    async def send(self, message: bytes) -> None:
        if self.closed:
            raise TransportClosed("the fake connection is closed")
        await self._server.room.wait()
        self._server.take(self, self._number, json.loads(message))

    async def close(self) -> None:
        self.closed = True
        self._inbox.put_nowait(None)

    def put(self, message: object) -> None:
        """Let the client receive a message; text is passed on as it is."""
        text = message if isinstance(message, str) else json.dumps(message)
        self._inbox.put_nowait(text.encode())

    def push(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.put({"method": method, "params": params})

    def reply(self, call_id: int | None, result: object) -> None:
        """Answer a request."""
        self.put({"id": call_id, "result": result})

    def drop(self, error: ExecServerError | None = None) -> None:
        """End the connection; with `error`, break it."""
        self._inbox.put_nowait(error)


class FakeServer:
    """Makes carriers, keeps all requests, answers from `answers` (method -> function of the params)."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Any], object]] = {
            "initialize": lambda params: {"sessionId": params["resumeSessionId"] or SESSION},
        }
        self.carriers: list[FakeCarrier] = []
        self.requests: list[Request] = []
        self.unreachable = False
        self.room = asyncio.Event()  # cleared: the fake reads nothing
        self.room.set()
        self._something = asyncio.Event()

    async def open_transport(self, timeout: float) -> FakeCarrier:
        """Make a connection, as the client's carriers do."""
        if self.unreachable:
            raise ConnectFailed("the fake is unreachable")
        self.carriers.append(FakeCarrier(self, len(self.carriers)))
        return self.carriers[-1]

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

    def asked(self, method: str) -> list[Request]:
        """Return the requests for one method so far."""
        return [request for request in self.requests if request.method == method]

    async def wait_for(self, method: str, count: int = 1) -> Request:
        """Wait for the `count`-th request for a method and return it."""
        async with asyncio.timeout(20):
            while len(self.asked(method)) < count:
                self._something.clear()
                await self._something.wait()
        return self.asked(method)[count - 1]
