"""One connection here, and the box's stream that it leads to: bytes both ways until both have ended.

Little costs no greenlet: the event loop reads it and sends it at once, and writes where it arrives what comes
from the box.  One is made as soon as sending has to wait: where much comes, the window is full, or the
connection was lost or carries nothing at once.  What cannot be written here yet waits in the stream's log,
whose window stops the box.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from execserver.client.errors import ExecServerError, RequestFailed
from execserver.eventloop.ends import READABLE, WRITABLE, End

if TYPE_CHECKING:
    from execserver.client.greenlets.quick_pieces import QuickPieces
    from execserver.client.ports import PortStream

_NO_LINGER: Final = struct.pack("ii", 1, 0)
SHORT_BYTES: Final = 16 * 1024  # sent by the event loop itself; behind as much there is mostly more


class Passage:
    """Owns both ends from `begin` on; `on_end` is called once, when a place for another one is free."""

    def __init__(self, end: End, stream: PortStream, on_end: Callable[[Passage], object]) -> None:
        self._end = end
        self._stream = stream
        self._on_end = on_end
        self._quick: QuickPieces = stream.follow(self._written, self._changed)
        loop, fd = get_hub().loop, end.fileno()
        self._reading = loop.io(fd, READABLE)
        self._room: Any = None  # a watcher, made when this end is full for the first time
        self._sender: gevent.Greenlet[[bytes], None] | None = None
        self._is_broken = False  # writing failed
        self._near_ended = False  # nothing more comes from this end
        self._near_done = False  # and the box has all
        self._far_done = False  # all of the box's is written, and this end knows that nothing more comes
        self._over = False

    def begin(self, rest: bytes = b"") -> None:
        """Begin to pass on: first the `rest`, and what has come from the box."""
        if rest:
            self._send_on(rest)
        else:
            self._reading.start(self._readable)
        if not self._stream.pass_on():
            self._changed()

    def finish(self) -> None:
        """End both sides, whatever is under way; may be called again."""
        if self._over:
            return
        self._over = True
        self._reading.close()
        if self._room is not None:
            self._room.close()
        sender, self._sender = self._sender, None
        if sender is not None and sender is not gevent.getcurrent():
            sender.kill(block=False)
        self._end.close()
        self._stream.leave()
        if self._stream.drop_at_once():
            self._on_end(self)
        else:
            gevent.spawn(self._drop)

    def _drop(self) -> None:
        self._stream.drop()
        self._on_end(self)

    # From here to the box:

    def _readable(self) -> None:
        """Send on a little that has come.  Called in the event loop, which must not wait."""
        try:
            data = self._end.recv_now(SHORT_BYTES)
            if not data:
                self._end_near()
            elif not self._quick.send(data):
                self._send_on(data)
            elif len(data) == SHORT_BYTES:
                self._send_on()
        except BlockingIOError:
            pass
        except (OSError, ExecServerError):
            self.finish()  # either side is gone: the other one is told by the end

    def _end_near(self) -> None:
        """Tell the box that nothing more comes from here, or that all is over, which is one request less."""
        self._reading.stop()
        self._near_ended = True
        if self._far_done and self._quick.is_settled:
            self.finish()
        elif not self._quick.send(b"", eof=True):
            self._send_on()

    def _send_on(self, data: bytes = b"") -> None:
        """Have a greenlet send what was read and all else until the end."""
        self._reading.stop()
        if self._sender is None:
            self._sender = gevent.spawn(self._send, data)

    def _send(self, data: bytes) -> None:
        try:
            self._stream.send_all(self._pieces(data), self._refused)
            if not self._far_done:
                self._stream.shutdown()
        except (OSError, ExecServerError) as error:
            if isinstance(error, RequestFailed):
                self._refused()
            self.finish()
            return
        self._near_done = True
        self._end_if_both_ended()

    def _refused(self) -> None:
        """End both sides since the box has refused what came from here.

        By a reset, since an end would say that all has arrived.  If it was told before that the stream has
        failed or ended, that is why, and what it has sent until then is to be read here.
        """
        if self._over or self._far_done or self._stream.error is not None:
            return
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.finish()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if data:
            yield data
        size = self._stream.piece_bytes
        while not self._near_ended:
            if data := self._end.recv(size):
                yield data
            else:
                self._near_ended = True

    # From the box to here:

    def _written(self, data: bytes) -> int:
        """Write what this end takes now; return how much that is."""
        try:
            return self._end.send_now(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_broken = True
            return 0

    def _writable(self) -> None:
        self._room.stop()
        if not self._stream.pass_on():
            self._changed()

    def _changed(self) -> None:
        """Look at the stream: what could not be written, its end, what has become of quick pieces."""
        if self._over:
            return
        try:
            self._take_changes()
        except (OSError, ExecServerError):
            self.finish()

    def _take_changes(self) -> None:
        log, quick = self._stream.log, self._quick
        if self._is_broken:
            self.finish()
            return
        if log.has_bytes:
            self._wait_for_room()
        elif not self._far_done and log.take() is not None:  # no bytes, so it is the end
            self._end.shutdown(socket.SHUT_WR)
            self._far_done = True
        if quick.needs_finish:
            self._send_on()
        elif self._near_ended and self._sender is None and quick.is_settled:
            self._near_done = True
        self._end_if_both_ended()

    def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = get_hub().loop.io(self._end.fileno(), WRITABLE)
        self._room.start(self._writable)

    def _end_if_both_ended(self) -> None:
        if self._near_done and self._far_done:
            self.finish()


def join(end: End, stream: PortStream) -> None:
    """Pass on until both sides have ended; a greenlet that is killed meanwhile ends them."""
    over = Event()
    passage = Passage(end, stream, lambda passage: over.set())
    try:
        passage.begin()
        over.wait()
    finally:
        passage.finish()
