"""One rendezvous WebSocket link: binary messages in, binary messages out, both bounded.

Everything runs in callbacks of the event loop; a link has no greenlet and no timer of its own.  A sender with
too much waiting here is not read.  A link that lets no sender go on for too long is closed, and so is a
silent one.  A link owns its socket.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from gevent.hub import get_hub

from execserver.relay.byte_streams import ByteStream
from execserver.relay.identity import Identity
from execserver.relay.link_context import Owner, Shared, Watcher
from execserver.relay.send_queue import SendQueue
from execserver.relay.ws_frames import end_of_frames, size_of_frame
from execserver.wire.close_codes import POLICY_VIOLATION
from execserver.wire.websocket import PING_FRAME, ServerFrames

if TYPE_CHECKING:
    from execserver.handover.relay_records import PackedRelayLink, Turn

_log = logging.getLogger(__name__)

_READY_READ, _READY_WRITE = 1, 2  # libev's EV_READ and EV_WRITE
_CONTROL_BYTES = 64 * 1024  # pongs and resets beyond this are dropped: a peer could ask for any number
_QUIET_PINGS = 2  # without anything heard in between: the peer is gone


class WebSocketLink:
    """An upgraded WebSocket of an executor or a harness."""

    __slots__ = (
        "_begun",
        "_begun_size",
        "_blocked",
        "_closed",
        "_closing",
        "_fd",
        "_flush_due",
        "_frames",
        "_heard",
        "_held_by",
        "_holding",
        "_invalid",
        "_owner",
        "_queue",
        "_quiet",
        "_reading",
        "_shared",
        "_stream",
        "_throttle",
        "_told",
        "_writing",
        "identity",
        "peer",
        "streams",
    )

    def __init__(
        self, stream: ByteStream, peer: str, identity: Identity, owner: Owner, shared: Shared
    ) -> None:
        self.identity = identity
        self.peer = peer
        self.streams: set[bytes] = set()  # of a harness: those that are routed to it
        self._stream = stream
        self._fd = stream.sock.fileno()
        self._owner = owner
        self._shared = shared
        self._frames = ServerFrames(shared.frame_limits)
        self._begun: bytes | bytearray = b""  # the received part of an incomplete frame
        self._begun_size = 0  # the whole size of that frame, once its header is here
        self._queue = SendQueue()
        self._holding: dict[
            WebSocketLink, Hashable | None
        ] = {}  # senders that are not read because of this link
        self._held_by: set[WebSocketLink] = set()  # links because of which this one is not read
        self._throttle: Watcher | None = None  # the timer while this link is not read because of its rate
        self._reading = get_hub().loop.io(self._fd, _READY_READ)
        self._writing: Watcher | None = None  # only while the socket takes no more: most links never need it
        self._blocked = self._flush_due = self._closing = self._closed = self._told = False
        self._heard = True  # since the last ping
        self._quiet = self._invalid = 0  # pings in a row with nothing heard; invalid frames
        shared.open_sockets.add(identity.token_id)

    @property
    def sock(self) -> socket.socket:
        """The socket, for the liveness check of TCP."""
        return self._stream.sock

    @property
    def is_open(self) -> bool:
        """True while messages can be sent to it."""
        return not (self._closing or self._closed)

    def start(self, early: bytes) -> None:
        """Start reading; `early` holds bytes that came with the upgrade."""
        self._reading.start(self._readable)
        self._shared.pings.add(self)
        if early:
            self._take(memoryview(early))
        if self._stream.pending:  # decrypted already: the kernel will not report these bytes as readable
            self._readable()

    def send(self, turn: Hashable, message: bytes) -> None:
        """Queue a message; messages of different `turn` values take turns.  Then call `hold_back`."""
        if self.is_open:
            self._queue.push(turn, message)
            self._schedule()

    def send_own(self, message: bytes) -> bool:
        """Queue a message of the relay's own unless too many wait; return whether it is queued."""
        if not self.is_open or self._queue.waiting(self) > _CONTROL_BYTES:
            return False
        self.send(self, message)
        return True

    def hold_back(self, sender: WebSocketLink, turn: Hashable | None = None) -> bool:
        """Stop reading a sender if too much (of its turn, if it has one) waits here; return whether it does.

        It is read again once half of that is written.
        """
        if sender in self._holding or self._queue.waiting(turn) <= self._shared.limits.queue_bytes:
            return False
        if not self._holding:
            self._shared.stalled.add(self)
        self._hold(sender, turn)
        sender._set_reading()
        return True

    def _hold(self, sender: WebSocketLink, turn: Hashable | None) -> None:
        self._holding[sender] = turn
        sender._held_by.add(self)

    def throttle(self, seconds: float) -> None:
        """Do not read for some seconds, because the rate limit is reached."""
        if self._throttle is None and self.is_open:
            timer = get_hub().loop.timer(seconds)
            self._throttle = timer
            self._set_reading()
            timer.start(self._unthrottle)

    def complain(self) -> None:
        """Count an invalid frame; too many of them close the link."""
        self._invalid += 1
        if self._invalid > self._shared.limits.invalid_frames:
            self.close(POLICY_VIOLATION, "too many invalid frames", "invalid_frames")

    def close(self, code: int, text: str, why: str) -> None:
        """Send a Close frame after everything queued, and end."""
        if self.is_open:
            self._frames.close(code, text)
            self._send_shutdown_notice(why)

    def ping(self) -> None:
        """Ping the peer, or end the link if the peer has been silent for too long."""
        if self._closing or self._closed:
            return
        # A link that is not read cannot be heard: its silence says nothing.
        if self._heard or self._held_by or self._throttle is not None:
            self._quiet = 0
        else:
            self._quiet += 1
        self._heard = False
        if self._quiet >= _QUIET_PINGS:
            self.give_up("silent")
            return
        if not self._blocked:  # a peer that does not read gets no pile of pings
            self._put(PING_FRAME)
        self._shared.pings.add(self)

    def end_shutdown_notice(self) -> None:
        """End a link whose peer takes too long to answer the Close frame."""
        self.give_up("closed")

    def end_stall(self) -> None:
        """End a link that has let no sender go on for too long; what is queued for it is dropped."""
        if self._holding:
            _log.warning("closing a %s that does not read: peer=%s", self.identity.role, self.peer)
            self.give_up("slow")

    def give_up(self, why: str = "lost") -> None:
        """End at once, without a Close frame, and free everything."""
        if self._closed:
            return
        self._closed = True
        self._reading.stop()
        if self._writing is not None:
            self._writing.stop()
        if self._throttle is not None:
            self._throttle.stop()
        shared = self._shared
        for watch in (shared.pings, shared.shutdown_notices, shared.stalled):
            watch.discard(self)
        shared.liveness.forget(self)
        self._stream.sock.close()
        shared.open_sockets.remove(self.identity.token_id)
        self._frames.let_go()
        self._queue.clear()
        self._release(everybody=True)  # a receiver that is gone must hold no sender back
        for holder in self._held_by:
            holder._holding.pop(self, None)
        self._tell(why)  # last: the owner sends resets to other links, and this one must be gone by then

    def pack(self, fd: int, named: Callable[[Hashable], Turn]) -> PackedRelayLink:
        """Return what `restore` takes; `named` gives a link its number, negative if it does not go along."""
        from execserver.handover.relay_records import PackedRelayLink

        holding = [(named(sender), named(turn)) for sender, turn in self._holding.items()]
        return PackedRelayLink(
            *(fd, self.peer, (*self.identity,)),
            *(None if self._closing else self._frames.pack(), self._frames.peer_closed),
            *(bytes(self._begun), self._queue.pack(named)),
            holding=[(sender, turn) for sender, turn in holding if isinstance(sender, int) and sender >= 0],
            facts=(self._heard, self._quiet, self._invalid),
        )

    def restore(self, packed: PackedRelayLink, turn_of: Callable[[Turn], Hashable]) -> None:
        """Become what was packed, for `go_on`; all links are made before the first is restored."""
        if packed.frames is None:
            self._frames.restore_finished(peer_closed=packed.peer_closed)
            self._closing = self._told = True
        else:
            self._frames.restore(packed.frames)
        self._begun, self._begun_size = bytearray(packed.begun), size_of_frame(memoryview(packed.begun))
        self._queue.restore(packed.queue, turn_of)
        self._heard, self._quiet, self._invalid = packed.facts
        for number, turn in packed.holding:
            sender = turn_of(number)
            assert isinstance(sender, WebSocketLink)
            self._hold(sender, turn_of(turn))

    def go_on(self) -> None:
        """Read and write again where the program before this one has stopped."""
        self._set_reading()
        self._shared.liveness.taken_over(self)
        self._schedule()

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._owner.lost(self, why)

    def _readable(self) -> None:
        view, begun = self._shared.view, len(self._begun)
        try:
            count = self._stream.read(view[begun:] if begun else view)
        except BlockingIOError:
            return
        except OSError:  # a reset connection, say: an end like any other
            count = 0
        if not count:
            self.give_up("left" if not self._closing else "closed")
            return
        self._heard = True
        if not self._closing:
            self._took(view, begun, begun + count)
        if self._stream.pending and not self._closed:  # later, so that other links get their turn
            get_hub().loop.run_callback(self._read_pending)

    def _read_pending(self) -> None:
        if not (self._closed or self._held_by) and self._throttle is None:  # may have changed since
            self._readable()

    def _took(self, view: memoryview, begun: int, end: int) -> None:
        """Handle bytes read into `view` after the space left for the frame that is begun."""
        # That one is joined only once it is whole.  Joined at every read, a frame sent in single bytes would
        # cost its peer nothing and the relay the square of its size.
        message = None if begun else self._frames.lone(self._shared.buffer, end)
        if message is not None:  # as nearly always
            self._owner.receive(self, [message])
        elif end < self._begun_size:
            self._begun += view[begun:end]
        else:
            view[:begun] = self._begun
            self._take(view[:end])

    def _take(self, data: memoryview) -> None:
        """Feed the whole frames; an incomplete one waits, since joining it first saves a third of the CPU."""
        whole = end_of_frames(data, self._shared.limits.frame_bytes)
        self._begun, self._begun_size = b"", 0
        if whole < len(data):
            self._begun, self._begun_size = bytearray(data[whole:]), size_of_frame(data[whole:])
        if whole:
            self._feed(data[:whole])

    def _feed(self, data: memoryview) -> None:
        messages = self._frames.feed(data)
        if messages:
            self._owner.receive(self, messages)
        if self._frames.finished:
            self._send_shutdown_notice("protocol_error" if self._frames.failure else "left")
        elif self._frames.control:
            self._answer()

    def _answer(self) -> None:
        control, self._frames.control = self._frames.control, []
        for data in control:
            if self._closing or self._queue.control_bytes < _CONTROL_BYTES:  # a Close frame is always sent
                self._put(data)

    def _put(self, data: bytes) -> None:
        """Queue a control frame ahead of the messages that wait for their turn."""
        self._queue.put(data)
        self._schedule()

    def _send_shutdown_notice(self, why: str) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        self._queue.fill(everything=True)  # into the line, for the Close frame must come after all of it
        self._answer()
        self._shared.pings.discard(self)
        self._shared.shutdown_notices.add(self)
        self._release(everybody=True)  # it takes no more messages
        self._tell(why)
        self._set_reading()  # also where senders are held back: to see the peer's Close frame or end
        self._flush()

    def _set_reading(self) -> None:
        if self._closed:
            return
        if self._closing or not (self._held_by or self._throttle is not None):
            self._reading.start(self._readable)
            if self._stream.pending:  # see `start`
                get_hub().loop.run_callback(self._read_pending)
        else:
            self._reading.stop()

    def _unthrottle(self) -> None:
        self._throttle = None
        self._set_reading()

    def _release(self, *, everybody: bool = False) -> None:
        """Read senders again that have little waiting here, or all of them."""
        low = self._shared.limits.queue_bytes // 2  # at the limit itself, each write would toggle a sender
        free = [each for each, turn in self._holding.items() if everybody or self._queue.waiting(turn) <= low]
        for sender in free:
            del self._holding[sender]
            sender._held_by.discard(self)
            sender._set_reading()
        if not self._holding:
            self._shared.stalled.discard(self)
        elif free:
            self._shared.stalled.add(self)  # some do go on: the time for the others starts again

    def _schedule(self) -> None:
        # Written at the end of this turn of the loop: what is queued until then leaves in one write.
        if not (self._flush_due or self._blocked or self._closed):
            self._flush_due = True
            get_hub().loop.run_callback(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not (self._blocked or self._closed):
            self._write()

    def _write(self) -> None:
        queue = self._queue
        try:
            while queue.fill():
                queue.took(self._stream.write(queue.line))
        except BlockingIOError:
            self._wait_to_write()
        except OSError:
            self.give_up("lost")
            return
        self._shared.liveness.written(self)
        if self._holding:
            self._release()
        if self._closing and not queue.line:
            self._end_writing()

    def _wait_to_write(self) -> None:
        self._blocked = True
        watcher = get_hub().loop.io(self._fd, _READY_WRITE)
        self._writing = watcher
        watcher.start(self._unblocked)

    def _unblocked(self) -> None:
        self._blocked = False
        if self._writing is not None:
            self._writing.stop()
            self._writing = None
        self._write()

    def _end_writing(self) -> None:
        if self._frames.peer_closed:
            self.give_up("closed")  # both have sent a Close frame; the server closes the connection first
            return
        try:  # the peer's own Close frame is awaited, for `close_timeout_s` at most
            self._stream.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.give_up("closed")
