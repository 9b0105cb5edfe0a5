"""The WebSocket transport of an accepted connection, from the upgrade to the last byte.

It owns the socket and reads in the event loop.  A conversation ends with a Close frame in both directions,
then a limited time in which the peer may read what is still on its way.
"""

from __future__ import annotations

import os
import socket
from functools import partial

from gevent import spawn
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop.liveness import LivenessSweep
from execserver.settings import Settings
from execserver.transports.outbox import Outbox
from execserver.transports.peer_window import PeerWindow
from execserver.transports.transport import Receiver
from execserver.wire.websocket import PING_FRAME, FrameLimits, ServerFrames, frame_header, text_frame

RECEIVE_BYTES = 256 * 1024  # read from the kernel at once; then the loop serves other connections
_READY_READ = 1
_PONG_BYTES = 64 * 1024  # queued for a peer that pings and does not read; further pongs are dropped
_NOTHING = b""


class WebSocketFraming:
    """Frames without a mask, as a server sends them, of text where nothing else is asked for."""

    carries_binary = True

    short = staticmethod(text_frame)

    def whole(self, length: int, *, binary: bool = False) -> tuple[bytes, bytes]:
        """Return the header of a message in one frame."""
        return frame_header(length, binary=binary), _NOTHING

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        """Return the header of one frame of a fragmented message."""
        return frame_header(length, first=first, final=final), _NOTHING


class Shared:
    """What all connections of a server share: limits, the liveness check, and one receive buffer.

    One buffer is enough, since each read is parsed before the next one begins.
    """

    __slots__ = ("buffer", "buffers", "limits", "liveness", "view")

    def __init__(self, settings: Settings) -> None:
        self.buffer = bytearray(RECEIVE_BYTES)
        self.buffers = [self.buffer]
        self.view = memoryview(self.buffer)
        self.limits = FrameLimits(
            settings.max_frame_bytes, settings.max_message_bytes, settings.max_fragments
        )
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
        is_tcp: bool = True,
    ) -> None:
        self.sock = sock
        self._fd = sock.fileno()
        self.peer = peer
        self.is_tcp = is_tcp
        self._settings = settings
        self._shared = shared
        self._early = early
        self.frames = ServerFrames(shared.limits)
        self._receiver: Receiver | None = None
        loop = get_hub().loop
        self._reading = loop.io(self._fd, _READY_READ)
        self._pinging = loop.timer(settings.ping_interval_s, settings.ping_interval_s)
        self._paused = False
        self._closing = False
        self._closed = False
        self._pong_bytes = 0  # queued since the outbox was empty
        self._peer_gone: Event | None = None  # made when the wait for the peer's end begins
        if is_tcp:
            written = partial(shared.liveness.written, self)
            self.outbox = Outbox(self._fd, _FRAMING, self._lost, written, PeerWindow(sock).unread)
        else:  # the kernel reports neither a window nor a peer that is gone
            self.outbox = Outbox(self._fd, _FRAMING, self._lost)

    @property
    def malformed_prefix(self) -> str:
        """The beginning of the answer to a malformed message."""
        return f"failed to parse websocket JSON-RPC message from exec-server websocket {self.peer}"

    @property
    def is_open(self) -> bool:
        """True while messages may come and go."""
        return not (self._closing or self._closed)

    def start(self, receiver: Receiver) -> None:
        """Start reading; bytes that arrived with the upgrade request come first."""
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
        self.frames.close(code, reason)
        self._send_shutdown_notice()

    def _readable(self) -> None:
        shared = self._shared
        try:
            count = os.readv(self._fd, shared.buffers)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.give_up()
        elif not self._closing:  # while closing, data is read only to meet the peer's end of file
            message = self.frames.lone(shared.buffer, count)
            if message is None:
                self._feed(shared.view[:count])
            elif self._receiver is not None:
                self._receiver.receive([message])

    def _feed(self, data: bytes | memoryview) -> None:
        frames = self.frames
        messages = frames.feed(data)
        if messages and self._receiver is not None:
            self._receiver.receive(messages)
        if frames.finished:
            self._send_shutdown_notice()
        elif frames.control:
            self._send_control()

    def _send_control(self) -> None:
        control, self.frames.control = self.frames.control, []
        if not self.outbox.queued:
            self._pong_bytes = 0
        for data in control:
            # While closing, one of them is the Close frame, which must not be dropped.
            if self._closing or self._pong_bytes < _PONG_BYTES:
                self._pong_bytes += len(data)
                self.outbox.send_control(data)

    def _send_shutdown_notice(self) -> None:
        """End the conversation: only what is queued and the Close frame still go out."""
        if self._closing or self._closed:
            return
        self._closing = True
        self._pinging.stop()
        self.outbox.finish()
        self._send_control()
        self.outbox.flush()
        if self.frames.peer_closed and not self.outbox.queued:
            self.give_up()  # the peer has everything, and sends nothing more
            return
        if self._receiver is not None:
            self._receiver.ended()
        self.resume()  # reading may be paused, and the peer's end of file must be seen
        spawn(self._linger)

    def _linger(self) -> None:
        """Let the peer read what is on its way, then close.

        If a socket is closed with unread data, the kernel sends a reset, which destroys what the peer has
        not read.  So shut down the sending side and wait for the peer's end of file.
        """
        if self.outbox.wait_until_empty(self._settings.close_timeout_s) and not self._closed:
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self._peer_gone = Event()
            self._peer_gone.wait(self._settings.close_timeout_s)
        self.give_up()

    def _ping(self) -> None:
        if self.outbox.has_room:  # pings must not pile up for a peer that does not read
            self.outbox.send_control(PING_FRAME)

    def _lost(self) -> None:
        """Give up after a failed write, but first take what the peer sent before it left."""
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
        """Release everything: the peer is gone.  Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._reading.stop()
        self._pinging.stop()
        self.outbox.close()
        self._shared.liveness.forget(self)
        self.sock.close()
        self.frames.let_go()
        if self._peer_gone is not None:
            self._peer_gone.set()
        receiver, self._receiver = self._receiver, None  # it refers to this transport: a reference cycle
        if receiver is not None:
            receiver.ended()


_FRAMING = WebSocketFraming()
