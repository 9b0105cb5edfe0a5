"""Terminals: the output of one process of a box, read by any number of browsers, one of which writes.

Output is taken from the box at once, so that no terminal delays another on the same connection.  While the
browser that is furthest ahead has much left to read, taking waits for it, which in the end stops the process;
one that reads nothing for a second is waited for no longer, and falls behind.  1 MiB of output is kept, and
1 MiB of input waits for a process that does not read; input beyond is dropped and told.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import gevent
from gevent.event import Event

from execserver.box.web.ring import KEPT_BYTES, Cursor, Piece, Ring
from execserver.client.errors import ExecServerError, OutputGap
from execserver.client.rules.event_log import UNKNOWN_EXIT, Exited, Output

if TYPE_CHECKING:
    from execserver.box.web.link import Link
    from execserver.client.process import RemoteProcess

_MUCH: Final = KEPT_BYTES // 4
_STALLED_S: Final = 1.0
_INPUT_BYTES: Final = 1024 * 1024
_INPUT_PIECE: Final = 64 * 1024


class Screen(Protocol):
    """The browser of a channel."""

    def tell(self, event: str, *, again: bool = False, **members: object) -> None:
        """Send an event."""

    def wake(self) -> None:
        """Note that a channel has news."""


class Terminal:
    """Owns the greenlets that take output from a process and pass input to it."""

    def __init__(self, link: Link, process_id: str, process: RemoteProcess, *, tty: bool, own: bool) -> None:
        """Add it to its link.  `own`: started by the console, and followed also when nobody looks."""
        self.link = link
        self.process_id = process_id  # on the box; that of a watch is another one
        self.process = process
        self.tty = tty
        self.own = own
        self.ring = Ring()
        self.exit_code: int | None = None
        self.is_over = False
        self.channels: list[Channel] = []
        self.writer: Channel | None = None
        self._input: deque[bytes] = deque()
        self._input_bytes = 0
        self._has_input = Event()
        self._room = Event()
        self._stalled = False
        self._workers = [gevent.spawn(self._follow), gevent.spawn(self._pass_on)]
        link.terminals[process_id] = self

    def attach(self, channel: Channel) -> None:
        """Add a reader; the first one writes, if this console may write."""
        self.channels.append(channel)
        if self.writer is None and self.process.writer and not self.is_over:
            self.writer = channel

    def detach(self, channel: Channel) -> None:
        """Remove a reader; the next one writes in the place of one that did.

        What nobody looks at is followed no longer, unless it is the console's own.
        """
        if channel in self.channels:
            self.channels.remove(channel)
        if self.writer is channel:
            self.writer = None
            if self.channels:
                self._set_writer(self.channels[0])
        self._room.set()
        if not self.channels and (self.is_over or not self.own):
            self.close()
            if not self.own:
                gevent.spawn(_unwatch, self.process)

    def take(self, channel: Channel) -> None:
        """Let a reader write, and no other.  Raises ExecServerError."""
        if not self.process.writer:
            self.process.take()
        self._set_writer(channel)

    def look_at_writer(self) -> None:
        """Notice that a session of somebody else has begun to write."""
        if self.writer is not None and not self.process.writer:
            before, self.writer = self.writer, None
            before.tell_writer()

    def put(self, channel: Channel, data: bytes) -> int:
        """Queue input; return how many bytes are dropped."""
        if channel is not self.writer or self.is_over:
            return 0
        fits = data[: max(0, _INPUT_BYTES - self._input_bytes)]
        if fits:
            self._input.append(fits)
            self._input_bytes += len(fits)
            self._has_input.set()
        return len(data) - len(fits)

    def took(self) -> None:
        """Note that a reader has taken output."""
        self._stalled = False
        self._room.set()

    def close(self) -> None:
        """Stop following; the process goes on unless it ends with its session."""
        if self.link.terminals.get(self.process_id) is self:
            del self.link.terminals[self.process_id]
        gevent.killall(self._workers, block=False)
        self._end()

    def _set_writer(self, channel: Channel) -> None:
        before, self.writer = self.writer, channel
        for each in (before, channel):
            if each is not None and before is not channel:
                each.tell_writer()

    def _follow(self) -> None:
        try:
            while self._take_event():
                self._wait_for_readers()
        except ExecServerError:
            pass  # the connection is lost for good, which is told by its event
        self._end()

    def _take_event(self) -> bool:
        try:
            event = self.process.next_event()
        except OutputGap as gap:
            self.ring.add_gap(gap.lost_bytes)
            self._tell_news()
            return True
        if isinstance(event, Output):
            self.ring.add(event.data)
            self._tell_news()
        elif isinstance(event, Exited):
            self.exit_code = None if event.code == UNKNOWN_EXIT else event.code
        return event is not None

    def _wait_for_readers(self) -> None:
        if self._stalled or not self.channels:
            return
        ends = time.monotonic() + _STALLED_S
        while self.channels and min(channel.behind for channel in self.channels) > _MUCH:
            self._room.clear()
            if not self._room.wait(max(0.0, ends - time.monotonic())):
                self._stalled = True
                return

    def _pass_on(self) -> None:
        while True:
            self._has_input.wait()
            self._has_input.clear()
            while self._input:
                data = b""
                while self._input and len(data) < _INPUT_PIECE:
                    data += self._input.popleft()
                try:
                    self.process.write(data)
                except ExecServerError:
                    pass  # it has ended, has no input, or somebody else writes: nobody waits for these keys
                self._input_bytes -= len(data)

    def _tell_news(self) -> None:
        for channel in self.channels:
            channel.wake()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.writer = None
            self._tell_news()
            self._room.set()


def _unwatch(process: RemoteProcess) -> None:
    try:
        process.unwatch()
    except ExecServerError:
        pass  # it ends with the session


class Channel:
    """One browser's view of a terminal."""

    def __init__(self, number: int, terminal: Terminal, screen: Screen) -> None:
        self.number = number
        self.terminal = terminal
        self._screen = screen
        self._cursor = Cursor(terminal.ring)
        terminal.attach(self)

    @property
    def writer(self) -> bool:
        """Whether this browser writes."""
        return self.terminal.writer is self

    @property
    def behind(self) -> int:
        """How many bytes this browser has not got."""
        return self._cursor.behind

    @property
    def has_news(self) -> bool:
        """Whether there is something for this browser."""
        return self._cursor.has_news or self.terminal.is_over

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self.terminal.is_over and not self._cursor.has_news

    @property
    def exit_code(self) -> int | None:
        """How the process ended, None if that is not known."""
        return self.terminal.exit_code

    def take(self, limit: int) -> Piece:
        """Return what comes next."""
        piece = self._cursor.take(limit)
        self.terminal.took()
        return piece

    def put(self, data: bytes) -> None:
        """Pass keys on."""
        dropped = self.terminal.put(self, data)
        if dropped:
            self._screen.tell("terminal.dropped", again=True, channel=self.number, bytes=dropped)

    def tell_writer(self) -> None:
        """Tell the browser whether it writes."""
        self._screen.tell("terminal.writer", channel=self.number, writer=self.writer)

    def wake(self) -> None:
        """Tell the browser that there is something."""
        self._screen.wake()

    def close(self) -> None:
        """Look no longer."""
        self.terminal.detach(self)
