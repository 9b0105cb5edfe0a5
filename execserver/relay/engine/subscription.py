"""What the engine passes on to this node: lines on channels, over a connection of its own.

A line can be lost only together with the connection, which is made again by itself; whoever needs the lines
is told when that happened (`on_connected`), and asks about everything anew.  A connection without an answer
to a ping counts as lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gevent import Greenlet, sleep, spawn, spawn_later
from gevent.event import Event
from gevent.lock import Semaphore

from execserver.eventloop.deadline import at_most
from execserver.eventloop.turns import give_way
from execserver.relay.engine.line import Dialer, Line
from execserver.relay.engine.resp import Failure, InvalidReply, Reply, encode
from execserver.relay.errors import CannotServe, EngineSilent

_log = logging.getLogger(__name__)

_PING_S = 1.0
_SILENT_S = 2.5
_PAUSE_S = 0.3
_RECEIVE_BYTES = 64 * 1024
_TURN_LINES = 64
_MAX_LISTENED = 4096  # channels that are listened to for a moment


class Arrivals:
    """The lines of one channel, for those who listen to it at the moment."""

    __slots__ = ("is_open", "listeners", "news")

    def __init__(self) -> None:
        self.listeners = 0
        self.is_open = Event()  # the engine has confirmed it
        self.news = Event()  # set by the next line; whoever waits takes it before looking

    def came(self) -> None:
        """Wake those who wait; the next line gets an event of its own, so that nobody misses it."""
        news, self.news = self.news, Event()
        news.set()


class Subscription:
    """Lines of some channels, for ever, and of others while somebody listens."""

    def __init__(
        self,
        dialer: Dialer,
        channels: tuple[str, ...],
        on_line: Callable[[str, str], None],
        on_connected: Callable[[], None],
    ) -> None:
        """`on_line` gets channel and line; like `on_connected` it must not block."""
        self._dialer = dialer
        self._channels = channels
        self._on_line = on_line
        self._on_connected = on_connected
        self._listened: dict[str, Arrivals] = {}
        self.is_ready = Event()  # set while every line on the channels arrives
        self._line: Line | None = None
        self._sending = Semaphore()  # two commands must not mix, even where the kernel takes them in parts
        self._heard = 0.0
        self._keeper: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Connect, and stay connected."""
        self._begin(0.0)

    def connect_again(self) -> None:
        """Give the connection up for a new one, which may lead to another primary."""
        if self._line is not None:
            self._line.close()  # the reader notices

    def close(self) -> None:
        """End the connection."""
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper = None  # its end holds its frames, which hold this
        self._drop()

    @contextmanager
    def listening(self, channel: str) -> Iterator[Arrivals]:
        """Listen to a channel for a while.  Raises EngineSilent if too many do."""
        arrivals = self._listened.get(channel)
        if arrivals is None:
            if len(self._listened) >= _MAX_LISTENED:
                raise EngineSilent("too many calls wait for executors")
            arrivals = self._listened[channel] = Arrivals()
        arrivals.listeners += 1
        try:
            if arrivals.listeners == 1:
                self._send("SUBSCRIBE", channel)
            yield arrivals
        finally:
            arrivals.listeners -= 1
            if not arrivals.listeners:
                del self._listened[channel]
                self._send("UNSUBSCRIBE", channel)

    def _send(self, *words: str) -> None:
        line = self._line
        if line is None:
            return
        sent = False
        try:
            with suppress(OSError), at_most(_SILENT_S), self._sending:
                line.sock.sendall(encode(words))
                sent = True
        finally:
            if not sent:  # or only in part
                line.close()  # the reader notices

    def _keep(self) -> None:
        told = ""
        while True:
            try:
                self._run()
            except CannotServe as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("no messages from the engine: %s", told)
            self._drop()
            sleep(_PAUSE_S)

    def _begin(self, pause: float) -> None:
        self._keeper = spawn_later(pause, self._keep)
        self._keeper.link_exception(self._failed)

    def _failed(self, keeper: Greenlet[[], None]) -> None:
        """Begin anew after a mistake of ours: else this node would be deaf for good, and look alive."""
        self._drop()
        if self._keeper is keeper:  # not closed meanwhile
            self._begin(_PAUSE_S)

    def _run(self) -> None:
        """Connect, and take lines until the connection is lost.  Raises CannotServe."""
        line = self._dialer.dial()
        self._line, self._heard = line, time.monotonic()
        self._send("SUBSCRIBE", *self._channels, *self._listened)
        pings = spawn(self._ping, line)
        expected = set(self._channels)
        taken = 0
        try:
            while data := line.sock.recv(_RECEIVE_BYTES):
                self._heard = time.monotonic()
                for reply in line.decoder.feed(data):
                    self._take(reply, expected)
                    taken += 1
                if taken >= _TURN_LINES:  # who sends without a pause keeps the event loop from nobody
                    taken = 0
                    give_way()
        except (OSError, InvalidReply) as error:
            raise EngineSilent(f"the engine: {error}") from None
        finally:
            pings.kill(block=False)
        raise EngineSilent("the engine closed the connection")

    def _take(self, reply: Reply, expected: set[str]) -> None:
        if isinstance(reply, Failure):
            raise InvalidReply(reply.text)
        if not isinstance(reply, list) or len(reply) < 2 or not isinstance(reply[0], bytes):
            raise InvalidReply("no message")
        kind, channel = reply[0], _text(reply[1])
        if kind == b"message" and len(reply) == 3:
            arrivals = self._listened.get(channel)
            if arrivals is not None:
                arrivals.came()
            elif channel in self._channels:  # else nobody listens to it any more
                self._on_line(channel, _text(reply[2]))
        elif kind == b"subscribe":
            if channel in self._listened:
                self._listened[channel].is_open.set()
            if channel in expected:
                expected.discard(channel)
                if not expected:  # from now on nothing is missed
                    self.is_ready.set()
                    self._on_connected()

    def _ping(self, line: Line) -> None:
        while self._line is line:
            sleep(_PING_S)
            if time.monotonic() - self._heard > _SILENT_S:
                line.close()
                return
            self._send("PING")

    def _drop(self) -> None:
        self.is_ready.clear()
        line, self._line = self._line, None
        if line is not None:
            line.close()
        for arrivals in self._listened.values():
            arrivals.is_open.clear()


def _text(word: Reply) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else ""
