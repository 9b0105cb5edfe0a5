"""A page of the console as a browser has it: its WebSocket, and plain HTTP with its headers."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tests.box.boxes import Person
from tests.support.peer import WAIT, ProtocolFault
from tests.support.waiting import wait_until
from tests.support.ws_peer import BINARY, CLOSE, TEXT, WsPeer

Json = Any


class Refused(AssertionError):
    """A call was answered with an error."""

    def __init__(self, error: dict[str, Json]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


class Page(WsPeer):
    """One page; events and terminal bytes that come meanwhile are kept."""

    @classmethod
    def open(cls, url: str, **headers: str) -> Page:
        """Open the WebSocket of a console as its own page does."""
        given = {"Origin": url.rstrip("/").rpartition("/")[0], **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
        return cls.connect(f"{url.replace('http:', 'ws:')}ws", headers=lines)  # type: ignore[return-value]

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.events: list[dict[str, Json]] = []
        self.answers: dict[int, dict[str, Json]] = {}
        self.output: dict[int, bytes] = {}
        self.opened: set[int] = set()

    def ask(self, method: str, **params: Json) -> Json:
        """Call a method; return its result.  Raises Refused."""
        return self.answer(self.begin(method, **params))

    def begin(self, method: str, **params: Json) -> int:
        """Call a method without waiting."""
        self.next_id += 1
        self.send_text(json.dumps({"id": self.next_id, "method": method, "params": params}))
        return self.next_id

    def answer(self, call_id: int) -> Json:
        """Return the result of a call."""
        self.until(lambda: call_id in self.answers)
        found = self.answers.pop(call_id)
        if "error" in found:
            raise Refused(found["error"])
        return found["result"]

    def until(self, ready: Callable[[], object]) -> None:
        """Read until something is true."""
        deadline = time.monotonic() + WAIT
        while not ready():
            frame = self._next_frame(deadline)
            assert frame is not None, f"the console has ended it: {self.ending}"
            assert frame.opcode != CLOSE, frame
            if frame.opcode == BINARY:
                (channel,) = struct.unpack_from(">I", frame.payload)
                assert channel in self.opened, "output for a channel that the page does not know"
                self.output[channel] = self.output.get(channel, b"") + frame.payload[4:]
            elif frame.opcode == TEXT:
                message = json.loads(frame.payload)
                if "event" in message:
                    self.events.append(message)
                else:
                    self.answers[message["id"]] = message
                    self._note_channel(message.get("result"))

    def _note_channel(self, result: Json) -> None:
        if isinstance(result, dict) and "channel" in result:
            self.opened.add(result["channel"])

    def event(self, name: str, **members: Json) -> dict[str, Json]:
        """Wait for an event with these members; forget and return it."""

        def found() -> list[dict[str, Json]]:
            wanted = {"event": name, **members}
            return [each for each in self.events if wanted.items() <= each.items()]

        self.until(found)
        first = found()[0]
        self.events.remove(first)
        return first

    def shown(self, channel: int, text: bytes) -> bytes:
        """Wait until a terminal shows a text; return all that it has shown."""
        self.until(lambda: text in self.output.get(channel, b""))
        return self.output[channel]

    def type(self, channel: int, keys: bytes) -> None:
        """Type into a terminal."""
        self.send_binary(struct.pack(">I", channel) + keys)


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


class Web:
    """A running console."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0

    def get(self, name: str = "", method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Send a request as a page of the console does; `headers` replace those of the browser."""
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Sec-Fetch-Site": "same-origin", **own}
        if method != "GET":
            given.setdefault("Origin", f"http://127.0.0.1:{self.port}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request(method, f"{urlsplit(self.url).path}{name}", body, given)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def file(
        self, box: str, path: bytes, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Answer:
        """Download or upload a file."""
        return self.get(f"files?box={quote(box)}&path={quote(path)}", method, body, **headers)

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Open a page, as soon as earlier ones have left."""
        page = wait_until(self._opened, WAIT)
        assert page is not None
        try:
            yield page
        finally:
            page.close()

    def _opened(self) -> Page | None:
        try:
            return Page.open(self.url)
        except ProtocolFault as fault:
            if "503" not in str(fault):
                raise
            return None

    def raw(self) -> socket.socket:
        """Connect without a word."""
        return socket.create_connection(("127.0.0.1", self.port), WAIT)


@contextmanager
def console(person: Person, *words: str) -> Iterator[Web]:
    """Run `execserver web`; ^C ends it."""
    running = person.start("web", *words, "--no-open")
    assert running.stdout is not None
    line = running.stdout.readline().decode().strip()
    try:
        assert line.startswith("http://127.0.0.1:"), running.communicate(timeout=WAIT)
        yield Web(line)
    finally:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=WAIT)
        assert running.returncode == 128 + signal.SIGINT, errors
        assert b"Traceback" not in errors, errors
