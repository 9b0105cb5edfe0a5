"""Messages through a relay: one virtual stream, end-to-end encrypted, over WebSockets that may be replaced.

The protocol is `wire.relay_stream`; here are the sockets, the clock and the greenlets.  With a reliable
executor a lost WebSocket is replaced and no message is lost; calls in flight do not notice.  With a plain one
the transport ends with its WebSocket, and the session above it connects again.

One greenlet reads each socket and a timer of the event loop keeps time; the socket's writer takes frames from
the stream when it can write.  Bounds: 4 MiB of messages that nobody has taken (then the executor is held
back), 1 MiB of messages that are not sealed yet (then `send` blocks), and those of the stream.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from execserver.client.errors import ConnectFailed, ExecServerError, RegistryRefused, TransportClosed, kept
from execserver.client.losses import Losses
from execserver.client.relay_connector import RelayConnector
from execserver.remote.registry import Bundle
from execserver.remote.rendezvous import ConnectionEnded, RendezvousSocket
from execserver.wire.relay_frames import (
    RESET_CLOSED,
    InvalidFrame,
    RelayFrame,
    Reset,
    decode_frame,
    encode_frame,
)
from execserver.wire.relay_stream import HarnessStream, Route, StreamError, StreamRejected

INBOX_BYTES: Final = 4 * 1024 * 1024
UNSEALED_BYTES: Final = 1024 * 1024
DOUBT_S: Final = 6.0  # of silence although an answer is due; then the WebSocket is replaced
_LEAST_PAUSE_S: Final = 0.001
_FOREVER: Final = float("inf")


class RelayTransport:
    """A `Transport` over one virtual stream; owns the stream, its sockets and its greenlets."""

    def __init__(self, connector: RelayConnector, bundle: Bundle, socket: RendezvousSocket) -> None:
        self._connector = connector
        self._socket: RendezvousSocket | None = socket
        self._connected_at = time.monotonic()
        self._losses = Losses()
        self._has_brought = False  # a message, since this socket is there
        self._messages: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._holding = False
        self._end: Exception | None = None  # set once the stream is over
        self._arrived, self._room, self._taken = Event(), Event(), Event()
        self._alarm = get_hub().loop.timer(0)
        self._alarm_at = _FOREVER
        self._greenlets: set[gevent.Greenlet[..., None]] = set()
        try:
            self._stream = self._open_stream(bundle)
        except StreamError as error:
            socket.close()
            raise RegistryRefused(f"the registry's authorization cannot be used: {error}") from error
        # First of all, as the protocol asks: each such stream takes one of the executor's places until then.
        for stream_id in connector.abandoned:
            socket.send(encode_frame(RelayFrame(stream_id, Reset(RESET_CLOSED))))
        connector.abandoned.clear()
        self._start(socket)

    def _open_stream(self, bundle: Bundle) -> HarnessStream:
        route = Route(
            bundle.environment_id, bundle.registration_id, bundle.executor_key, bundle.authorization
        )
        return HarnessStream(str(uuid4()), self._connector.keys, route, time.monotonic())

    @classmethod
    def connect(cls, connector: RelayConnector, timeout: float) -> RelayTransport:
        """Ask the registry, connect, and begin the handshake.  Raises as `RelayConnector.dial` does."""
        bundle, socket = connector.connect(timeout)
        try:
            return cls(connector, bundle, socket)
        except ConnectionEnded as error:
            raise ConnectFailed(f"the relay ended the connection: {error}") from error

    @property
    def is_reliable(self) -> bool:
        """True if the executor has announced that it resumes streams."""
        return self._stream.is_reliable

    def receive(self) -> bytes | None:
        """Return the next message (see `Transport`); never None, since a stream has no orderly end.

        Raises `RegistryRefused` when the executor says that the registry does not let this client in.
        """
        while not self._messages:
            if isinstance(self._end, StreamRejected):
                raise RegistryRefused(str(self._end))
            if self._end is not None:
                raise _closed_by(self._end)
            self._arrived.clear()
            self._arrived.wait()
        message = self._messages.popleft()
        self._inbox_bytes -= len(message)
        if self._holding and self._inbox_bytes <= INBOX_BYTES // 2:
            self._holding = False
            self._taken.set()
            self._take(self._stream.hold(False))
            self._ready()
        return message

    def send(self, message: bytes) -> None:
        """Queue one message; blocks while more than 1 MiB is queued.  Raises `TransportClosed`."""
        while self._end is None and self._stream.queued_bytes > UNSEALED_BYTES:
            self._room.clear()
            self._room.wait()
        if self._end is not None:
            raise _closed_by(self._end)
        try:
            self._stream.send(message, time.monotonic())
        except StreamError as error:
            self._fail(error)
            raise _closed_by(error) from error
        self._ready()

    @property
    def has_frames(self) -> bool:
        """True if there may be a further frame now."""
        return self._end is None and self._stream.has_frames

    def take_frame(self) -> bytes | None:
        """Return the next frame; called by the socket's writer when it can write."""
        try:
            frame = self._stream.next_frame(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return None
        if frame is not None:
            self._set_alarm()
            if not self._room.is_set() and self._stream.queued_bytes <= UNSEALED_BYTES:
                self._room.set()
        return frame

    def close(self) -> None:
        """End the stream, report it to a reliable executor if that works at once, and close the socket."""
        if self._end is None:
            self._stream.close()
            self._finish(TransportClosed("the connection is closed"))
        socket, self._socket = self._socket, None
        if socket is not None:
            self._send_shutdown_notice(socket)
            socket.close()
        elif self._stream.may_be_kept:
            self._abandon()
        current = gevent.getcurrent()
        gevent.killall([each for each in self._greenlets if each is not current], block=False)

    def _send_shutdown_notice(self, socket: RendezvousSocket) -> None:
        """Send the stream's last frame, if it has one."""
        socket.writer.forget(self)
        try:
            frame = self._stream.next_frame(time.monotonic())
            if frame is not None and socket.writer.urgent(frame):
                gevent.sleep(0)  # the writer's turn, before the socket is closed
        except StreamError:
            pass  # the stream has no last frame

    def _abandon(self) -> None:
        """Have the next connection report to the executor that this stream will not be resumed."""
        if self._stream.may_be_kept and self._stream.stream_id not in self._connector.abandoned:
            self._connector.abandoned.append(self._stream.stream_id)

    def _spawn(self, run: Callable[..., None], *args: object) -> None:
        greenlet = gevent.spawn(run, *args)
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)

    def _finish(self, error: Exception) -> None:
        """Note why the stream is over and wake all that wait; `close` releases what is held."""
        if self._end is None:
            self._end = kept(error)
            self._alarm.close()
            for event in (self._arrived, self._room, self._taken):
                event.set()

    def _fail(self, error: Exception) -> None:
        self._abandon()
        self._finish(error)

    def _take(self, messages: list[bytes]) -> None:
        if messages:
            self._has_brought = True
            self._messages.extend(messages)
            self._inbox_bytes += sum(map(len, messages))
            self._arrived.set()

    def _ready(self) -> None:
        """Have the writer ask for frames, and set the timer to the next deadline."""
        if self._socket is not None:
            self._socket.writer.ready(self)
        self._set_alarm()

    def _start(self, socket: RendezvousSocket) -> None:
        self._spawn(self._read, socket)
        self._ready()

    def _read(self, socket: RendezvousSocket) -> None:
        try:
            while self._end is None:
                data = socket.receive()
                if data is None:
                    self._lost(
                        socket, TransportClosed(f"the way to the relay is lost: {socket.ended_because}")
                    )
                    return
                frame = decode_frame(data)
                # As by the reference's harness: other streams' frames are ignored, an invalid one ends this.
                if frame.stream_id == self._stream.stream_id:
                    self._take(self._stream.feed(frame, time.monotonic()))
                    self._ready()
                if self._inbox_bytes > INBOX_BYTES:
                    self._hold_back()
        except (StreamError, InvalidFrame) as error:
            self._fail(error)

    def _hold_back(self) -> None:
        """Make the executor wait: by the protocol if it is reliable, else by reading nothing more."""
        self._holding = True
        if self._stream.is_reliable:
            self._stream.hold(True)
            return
        while self._holding and self._end is None:
            self._taken.clear()
            self._taken.wait()

    def _set_alarm(self) -> None:
        """Set the timer to the stream's deadline, if that is earlier than the timer's."""
        due = self._stream.deadline()
        if due is not None and due < self._alarm_at and self._end is None:
            self._alarm_at = due
            self._alarm.close()
            self._alarm = get_hub().loop.timer(max(_LEAST_PAUSE_S, due - time.monotonic()))
            self._alarm.start(self._ring)

    def _ring(self) -> None:
        """Do what is due; runs in the event loop, so nothing here may wait."""
        self._alarm_at = _FOREVER
        if self._end is not None:
            return
        try:
            self._stream.tick(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return
        self._ready()
        self._doubt()

    def _doubt(self) -> None:
        """Replace a WebSocket on which a reliable executor has not been heard for a while."""
        socket, now = self._socket, time.monotonic()
        if socket is not None and now >= max(self._connected_at, self._stream.heard_at(now)) + DOUBT_S:
            silent = TransportClosed(f"the executor has been silent for {DOUBT_S:g} s")
            self._spawn(self._lost, socket, silent)  # it waits until the Close frame is written

    def _lost(self, socket: RendezvousSocket, error: TransportClosed) -> None:
        if socket is not self._socket or self._end is not None:
            return
        self._socket = None
        socket.close()
        self._losses.add(time.monotonic() - self._connected_at, brought=self._has_brought)
        self._has_brought = False
        try:
            self._stream.lost(time.monotonic())
        except StreamError:
            self._fail(error)
            return
        self._set_alarm()
        self._spawn(self._replace)  # not here: this greenlet is the reader of the lost socket, or the timer's

    def _replace(self) -> None:
        """Connect again for a reliable stream; the stream's own silence limit bounds the time."""
        gevent.sleep(self._losses.first_pause())
        attempt = 0
        while self._end is None:
            try:
                socket = self._connector.connect(self._connector.options.connect_timeout)[1]
            except ConnectFailed:
                gevent.sleep(self._losses.next_pause(attempt))
                attempt += 1
            except ExecServerError as error:
                self._fail(error)
            else:
                self._resume(socket)
                return

    def _resume(self, socket: RendezvousSocket) -> None:
        if self._end is not None:
            socket.close()
            return
        self._socket = socket
        self._connected_at = time.monotonic()
        try:
            self._stream.restored(self._connected_at)
        except StreamError as error:
            self._fail(error)
            return
        self._start(socket)


def _closed_by(error: Exception) -> TransportClosed:
    """Return a new error, one for each caller: several would mix their tracebacks in one."""
    closed = TransportClosed(str(error))
    closed.__cause__ = error
    return closed
