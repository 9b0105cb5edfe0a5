"""Calls of many greenlets over one line to the engine, in one pipeline.

What is called in one turn of the event loop leaves in one write.  Replies come in the order of the calls.
Where the oldest call has waited too long, or something that is no reply arrives, the connection ends, and all
that wait learn it at once: nobody waits for an engine that hangs, also in the middle of a reply.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from gevent import joinall, spawn
from gevent.event import Event

from execserver.relay.engine.line import Line
from execserver.relay.engine.resp import Command, InvalidReply, Reply, encode
from execserver.relay.errors import EngineSilent

MAX_CALLS = 4096  # that wait at a time; a further one is refused at once
_RECEIVE_BYTES = 64 * 1024


class _Call:
    """Some commands of one greenlet, and the replies that have come."""

    __slots__ = ("count", "done", "replies", "since")

    def __init__(self, count: int) -> None:
        self.count = count
        self.replies: list[Reply] = []
        self.done = Event()
        self.since = time.monotonic()


class Connection:
    """A pipeline over a line, which it owns."""

    def __init__(self, line: Line) -> None:
        self.ended = Event()
        self.ended_because = ""
        self._line = line
        self._calls: deque[_Call] = deque()
        self._unsent: list[bytes] = []
        self._has_unsent = Event()
        self._greenlets = [spawn(self._read), spawn(self._write)]

    @property
    def waiting(self) -> int:
        """The number of calls that wait for replies."""
        return len(self._calls)

    def call(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies to some commands, which nothing comes between.  Raises EngineSilent."""
        if self.ended.is_set():
            raise EngineSilent(self.ended_because)
        if not commands:
            return []
        if len(self._calls) >= MAX_CALLS:
            raise EngineSilent("too many calls wait for the engine")
        encoded = list(map(encode, commands))  # before anything waits for the replies
        call = _Call(len(commands))
        self._calls.append(call)
        self._unsent += encoded
        self._has_unsent.set()
        call.done.wait()
        if len(call.replies) < call.count:
            raise EngineSilent(self.ended_because)
        return call.replies

    def is_overdue(self, seconds: float) -> bool:
        """Tell whether the oldest call has waited longer than some seconds."""
        return bool(self._calls) and time.monotonic() - self._calls[0].since > seconds

    def end(self, why: str) -> None:
        """Close the line; everybody who waits gets EngineSilent."""
        if self.ended.is_set():
            return
        self.ended_because = why
        self.ended.set()
        self._has_unsent.set()  # the writer ends
        self._line.close()
        while self._calls:
            self._calls.popleft().done.set()

    def close(self) -> None:
        """End, and wait until nothing is left of it; for others than its own greenlets."""
        self.end("the relay ends")
        joinall(self._greenlets)
        self._greenlets.clear()

    def _read(self) -> None:
        line = self._line
        try:
            while data := line.sock.recv(_RECEIVE_BYTES):
                for reply in line.decoder.feed(data):
                    self._took(reply)
            self.end("the engine closed the connection")
        except (OSError, InvalidReply) as error:
            self.end(f"the connection to the engine: {error}")

    def _took(self, reply: Reply) -> None:
        if not self._calls:
            raise InvalidReply("a reply that nobody waits for")
        call = self._calls[0]
        call.replies.append(reply)
        if len(call.replies) == call.count:
            self._calls.popleft()
            call.done.set()

    def _write(self) -> None:
        try:
            while not self.ended.is_set():
                self._has_unsent.wait()
                self._has_unsent.clear()
                unsent, self._unsent = self._unsent, []
                if unsent:
                    self._line.sock.sendall(b"".join(unsent))
        except OSError as error:
            self.end(f"the connection to the engine: {error}")
