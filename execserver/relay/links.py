"""One rendezvous websocket: binary messages in, binary messages out, both bounded.

All of it happens in callbacks of the event loop: no greenlet and no timer of its own per link.  What one
sender has waiting here is bounded by not reading that sender; a link that lets nobody go on for too long is
closed, and so is one that is silent.  A link owns its socket.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Protocol

from gevent.hub import get_hub

from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.send_queue import SendQueue
from execserver.relay.wires import Wire
from execserver.relay.ws_frames import end_of_frames, size_of_frame
from execserver.services.delay_queue import DelayQueue
from execserver.transports.liveness import LivenessSweep
from execserver.wire.websocket import PING_FRAME, POLICY_VIOLATION, FrameLimits, ServerFrames

_log = logging.getLogger(__name__)

_READY_READ, _READY_WRITE = 1, 2
_RECEIVE_BYTES = 384 * 1024  # handled at once, above the largest frame; then the loop turns to other links
_CONTROL_BYTES = 64 * 1024  # pongs and resets beyond this wait for nobody: they are dropped
_MAX_FRAGMENTS = 64
_QUIET_PINGS = 2


class _Watcher(Protocol):
    """What this module uses of a watcher of the event loop."""

    def start(self, callback: Callable[[], None]) -> None: ...

    def stop(self) -> None: ...


class Owner(Protocol):
    """Who takes what a link receives.  Called in the event loop, so it must not block."""

    def receive(self, link: Link, messages: list[bytes]) -> None:
        """Take messages, in order."""

    def lost(self, link: Link, why: str) -> None:
        """Note that nothing comes from this link or goes to it any more; called once."""


class Shared:
    """What all links of a relay have in common: limits, watches, and one receive buffer."""

    def __init__(self, limits: Limits, tcp_timeout_s: float) -> None:
        self.limits = limits
        self.frame_limits = FrameLimits(limits.frame_bytes, limits.frame_bytes, _MAX_FRAGMENTS)
        self.view = memoryview(bytearray(_RECEIVE_BYTES))
        self.pings: DelayQueue[Link] = DelayQueue(limits.ping_s, Link.ping)
        self.goodbyes: DelayQueue[Link] = DelayQueue(limits.close_timeout_s, Link.end_goodbye)
        self.stalled: DelayQueue[Link] = DelayQueue(limits.stalled_s, Link.end_stall)
        self.liveness = LivenessSweep(tcp_timeout_s)
        self.sockets_of: Counter[str] = Counter()  # open sockets by token, those that say goodbye included


class Link:
    """An upgraded websocket of an executor or a harness."""

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
        "_throttle",
        "_told",
        "_wire",
        "_writing",
        "identity",
        "peer",
        "streams",
    )

    def __init__(self, wire: Wire, peer: str, identity: Identity, owner: Owner, shared: Shared) -> None:
        self.identity = identity
        self.peer = peer
        self.streams: set[bytes] = set()  # of a harness: those that are routed to it
        self._wire = wire
        self._fd = wire.sock.fileno()
        self._owner = owner
        self._shared = shared
        self._frames = ServerFrames(shared.frame_limits)
        self._begun: bytes | bytearray = b""  # a frame that is not complete
        self._begun_size = 0  # what it will have, once its header tells
        self._queue = SendQueue()
        self._holding: dict[Link, Hashable | None] = {}  # senders that are not read because of this link
        self._held_by: set[Link] = set()
        self._throttle: _Watcher | None = None  # the timer while this link is not read because of its rate
        self._reading = get_hub().loop.io(self._fd, _READY_READ)
        self._writing: _Watcher | None = None
        self._blocked = self._flush_due = self._closing = self._closed = self._told = False
        self._heard = True
        self._quiet = self._invalid = 0
        shared.sockets_of[identity.token_id] += 1

    @property
    def sock(self) -> socket.socket:
        """The socket, for the watch over peers that are gone."""
        return self._wire.sock

    @property
    def is_open(self) -> bool:
        """Tell whether messages still go to it."""
        return not (self._closing or self._closed)

    def start(self, early: bytes) -> None:
        """Begin to read; bytes that came with the upgrade come first."""
        self._reading.start(self._readable)
        self._shared.pings.add(self)
        if early:
            self._take(memoryview(early))
        if self._wire.pending:
            self._readable()

    def send(self, turn: Hashable, message: bytes) -> None:
        """Queue a message; those of different turns take turns.  The caller then asks for `hold_back`."""
        if self.is_open:
            self._queue.push(turn, message)
            self._schedule()

    def send_own(self, message: bytes) -> bool:
        """Queue a message of the relay's own unless too much of that waits; tell whether it is queued."""
        if not self.is_open or self._queue.waiting(self) > _CONTROL_BYTES:
            return False
        self.send(self, message)
        return True

    def hold_back(self, sender: Link, turn: Hashable | None = None) -> bool:
        """Stop reading a sender when too much (of its turn, if it has one) waits here; tell whether it does.

        It is read again once half of that has gone.
        """
        if sender in self._holding or self._queue.waiting(turn) <= self._shared.limits.queue_bytes:
            return False
        if not self._holding:
            self._shared.stalled.add(self)
        self._holding[sender] = turn
        sender._held_by.add(self)
        sender._set_reading()
        return True

    def throttle(self, seconds: float) -> None:
        """Do not read for a while."""
        if self._throttle is None and self.is_open:
            timer = get_hub().loop.timer(seconds)
            self._throttle = timer
            self._set_reading()
            timer.start(self._unthrottle)

    def complain(self) -> None:
        """Count an invalid frame; too many end the link."""
        self._invalid += 1
        if self._invalid > self._shared.limits.invalid_frames:
            self.close(POLICY_VIOLATION, "too many invalid frames", "invalid_frames")

    def close(self, code: int, text: str, why: str) -> None:
        """Send a Close frame behind what is queued, and end."""
        if self.is_open:
            self._frames.close(code, text)
            self._say_goodbye(why)

    def ping(self) -> None:
        """Ask whether the peer is there, or give it up when it has been silent for too long."""
        if self._closing or self._closed:
            return
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

    def end_goodbye(self) -> None:
        """Release a link whose peer takes too long to say goodbye."""
        self.give_up("closed")

    def end_stall(self) -> None:
        """Close a link that has let nobody go on for too long; what is queued for it is dropped."""
        if self._holding:
            _log.warning("closing a %s that does not read: peer=%s", self.identity.role, self.peer)
            self.give_up("slow")

    def give_up(self, why: str = "lost") -> None:
        """Release everything at once."""
        if self._closed:
            return
        self._closed = True
        self._reading.stop()
        if self._writing is not None:
            self._writing.stop()
        if self._throttle is not None:
            self._throttle.stop()
        shared = self._shared
        for watch in (shared.pings, shared.goodbyes, shared.stalled):
            watch.discard(self)
        shared.liveness.forget(self)
        self._wire.sock.close()
        shared.sockets_of[self.identity.token_id] -= 1
        if not shared.sockets_of[self.identity.token_id]:
            del shared.sockets_of[self.identity.token_id]
        self._frames.let_go()
        self._queue.clear()
        self._release(everybody=True)
        for holder in self._held_by:
            holder._holding.pop(self, None)
        self._tell(why)

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._owner.lost(self, why)

    def _readable(self) -> None:
        view, begun = self._shared.view, len(self._begun)
        try:
            count = self._wire.read(view[begun:])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.give_up("left" if not self._closing else "closed")
            return
        self._heard = True
        if not self._closing:
            self._took(view, begun, begun + count)
        if self._wire.pending and not self._closed:
            get_hub().loop.run_callback(self._read_pending)

    def _read_pending(self) -> None:
        if not (self._closed or self._held_by) and self._throttle is None:
            self._readable()

    def _took(self, view: memoryview, begun: int, end: int) -> None:
        """Handle what was read behind the place of a frame that is begun.

        Such a frame is put together here only once it is whole: the copies would cost a peer that sends
        single bytes nothing, and the relay the square of its frame.
        """
        if end < self._begun_size:
            self._begun += view[begun:end]
        else:
            view[:begun] = self._begun
            self._take(view[:end])

    def _take(self, data: memoryview) -> None:
        """Feed the frames that are whole; one that is begun waits: to feed it in pieces costs more."""
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
            self._say_goodbye("protocol_error" if self._frames.failure else "left")
        elif self._frames.control:
            self._answer()

    def _answer(self) -> None:
        control, self._frames.control = self._frames.control, []
        for data in control:
            if self._closing or self._queue.control_bytes < _CONTROL_BYTES:
                self._put(data)

    def _put(self, data: bytes) -> None:
        """Queue a control frame ahead of the messages that wait."""
        self._queue.put(data)
        self._schedule()

    def _say_goodbye(self, why: str) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        self._queue.fill(everything=True)
        self._answer()
        self._shared.pings.discard(self)
        self._shared.goodbyes.add(self)
        self._release(everybody=True)
        self._tell(why)
        self._set_reading()  # to see the peer's end
        self._flush()

    def _set_reading(self) -> None:
        if self._closed:
            return
        if self._closing or not (self._held_by or self._throttle is not None):
            self._reading.start(self._readable)
            if self._wire.pending:
                get_hub().loop.run_callback(self._read_pending)
        else:
            self._reading.stop()

    def _unthrottle(self) -> None:
        self._throttle = None
        self._set_reading()

    def _release(self, *, everybody: bool = False) -> None:
        """Let senders go on that have little left here."""
        low = self._shared.limits.queue_bytes // 2
        free = [each for each, turn in self._holding.items() if everybody or self._queue.waiting(turn) <= low]
        for sender in free:
            del self._holding[sender]
            sender._held_by.discard(self)
            sender._set_reading()
        if not self._holding:
            self._shared.stalled.discard(self)
        elif free:
            self._shared.stalled.add(self)  # it does let some go on: its time begins anew

    def _schedule(self) -> None:
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
                queue.took(self._wire.write(queue.line))
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
            self.give_up("closed")  # both have said goodbye, and it is for the server to hang up
            return
        try:
            self._wire.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.give_up("closed")
