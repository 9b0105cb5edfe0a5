"""The WebSocket carrier of an accepted connection, from the upgrade to the last byte.

It owns the socket.  Reading is done in the event loop; the end of the conversation is a Close frame both
ways, then a bounded time in which the peer may read what was still on its way.
"""

from __future__ import annotations

import os
import socket

from gevent import spawn
from gevent.event import Event
from gevent.hub import get_hub

from execserver.settings import Settings
from execserver.transports.liveness import LivenessSweep
from execserver.transports.outbox import Outbox
from execserver.transports.peer_window import PeerWindow
from execserver.transports.transport import Receiver
from execserver.wire.websocket import PING_FRAME, FrameLimits, ServerFrames, frame_header

RECEIVE_BYTES = 256 * 1024  # taken from the kernel at once; then the loop turns to other connections
_READY_READ = 1
_PONG_BYTES = 64 * 1024  # queued for a peer that pings and does not read; further ones are dropped
_NOTHING = b""


class WebSocketFraming:
    """Text frames without mask, as a server sends them."""

    def whole(self, length: int) -> tuple[bytes, bytes]:
        """Return the header of a message in one frame."""
        return frame_header(length), _NOTHING

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        """Return the header of one frame of a fragmented message."""
        return frame_header(length, first=first, final=final), _NOTHING


class Shared:
    """What all connections of a server have in common: the watch over their peers, and one receive buffer.

    One is enough, since each read is parsed before the next one begins.
    """

    __slots__ = ("buffers", "liveness", "view")

    def __init__(self, settings: Settings) -> None:
        buffer = bytearray(RECEIVE_BYTES)
        self.buffers = [buffer]
        self.view = memoryview(buffer)
        self.liveness = LivenessSweep(settings.tcp_user_timeout_s)


class WebSocketTransport:
    """Messages of one upgraded socket; a `Transport`."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        settings: Settings,
        shared: Shared,
        early: bytes,
    ) -> None:
        self.sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._settings = settings
        self._shared = shared
        self._early = early
        limits = FrameLimits(settings.max_frame_bytes, settings.max_message_bytes, settings.max_fragments)
        self._frames = ServerFrames(limits)
        self._receiver: Receiver | None = None
        loop = get_hub().loop
        self._reading = loop.io(self._fd, _READY_READ)
        self._pinging = loop.timer(settings.ping_interval_s, settings.ping_interval_s)
        self._paused = False
        self._closing = False
        self._closed = False
        self._pong_bytes = 0  # queued since the outbox was empty
        self._peer_gone: Event | None = None  # made when the goodbye begins
        self.outbox = Outbox(self._fd, _FRAMING, self._lost, self._wrote, PeerWindow(sock).unread)

    @property
    def malformed_prefix(self) -> str:
        """How the answer to an unreadable message begins."""
        return f"failed to parse websocket JSON-RPC message from exec-server websocket {self._peer}"

    def start(self, receiver: Receiver) -> None:
        """Begin to read; bytes that came with the upgrade come first."""
        self._receiver = receiver
        self._reading.start(self._readable)
        self._pinging.start(self._ping)
        early, self._early = self._early, b""
        if early:
            self._feed(early)

    def pause(self) -> None:
        """Stop reading."""
        self._paused = True
        self._reading.stop()

    def resume(self) -> None:
        """Read again."""
        if self._paused and not self._closed:
            self._paused = False
            self._reading.start(self._readable)

    def close(self, code: int, reason: str) -> None:
        """Send a Close frame behind what is queued, and end."""
        if self._closing or self._closed:
            return
        self._frames.close(code, reason)
        self._say_goodbye()

    def _readable(self) -> None:
        try:
            count = os.readv(self._fd, self._shared.buffers)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.give_up()
        elif not self._closing:
            self._feed(self._shared.view[:count])

    def _feed(self, data: bytes | memoryview) -> None:
        frames = self._frames
        messages = frames.feed(data)
        if messages and self._receiver is not None:
            self._receiver.receive(messages)
        if frames.finished:
            self._say_goodbye()
        elif frames.control:
            self._send_control()

    def _send_control(self) -> None:
        control, self._frames.control = self._frames.control, []
        if not self.outbox.queued:
            self._pong_bytes = 0
        for data in control:
            if self._closing or self._pong_bytes < _PONG_BYTES:
                self._pong_bytes += len(data)
                self.outbox.send_control(data)

    def _say_goodbye(self) -> None:
        """Both sides are done, or ours is: nothing but the queue and the Close frame goes out any more."""
        if self._closing or self._closed:
            return
        self._closing = True
        self._pinging.stop()
        self.outbox.finish()
        self._send_control()
        self.outbox.flush()
        if self._frames.peer_closed and not self.outbox.queued:
            self.give_up()  # it has all it will get and sends nothing more
            return
        if self._receiver is not None:
            self._receiver.ended()
        self.resume()  # to see the peer's end
        spawn(self._linger)

    def _linger(self) -> None:
        """Let the peer read what is on its way: closing with unread data would destroy it."""
        if self.outbox.wait_until_empty(self._settings.close_timeout_s) and not self._closed:
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self._peer_gone = Event()
            self._peer_gone.wait(self._settings.close_timeout_s)
        self.give_up()

    def _wrote(self) -> None:
        self._shared.liveness.written(self)

    def _ping(self) -> None:
        if self.outbox.has_room:  # a peer that does not read gets no pile of pings
            self.outbox.send_control(PING_FRAME)

    def _lost(self) -> None:
        """Nothing can be written any more, but what the peer sent before it left is still to be handled."""
        while not (self._closing or self._closed):
            try:
                count = os.readv(self._fd, self._shared.buffers)
            except OSError:
                break
            if not count:
                break
            self._feed(self._shared.view[:count])
        self.give_up()

    def give_up(self) -> None:
        """Release everything: the peer is gone."""
        if self._closed:
            return
        self._closed = True
        self._reading.stop()
        self._pinging.stop()
        self.outbox.close()
        self._shared.liveness.forget(self)
        self.sock.close()
        self._frames.let_go()
        if self._peer_gone is not None:
            self._peer_gone.set()
        receiver, self._receiver = self._receiver, None  # which holds this transport
        if receiver is not None:
            receiver.ended()


_FRAMING = WebSocketFraming()
