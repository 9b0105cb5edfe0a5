"""Messages through a relay: one virtual stream, end-to-end encrypted, over WebSockets that may be replaced.

The protocol is `wire.relay_stream`, and `course` says what is done when; here are the sockets, the
clock and the greenlets.  With a reliable executor a lost WebSocket is replaced and no message is lost; calls
in flight do not notice.  With a plain one the transport ends with its WebSocket, and the session above it
connects again.

One greenlet reads each socket and a timer of the event loop keeps time; the socket's writer takes frames from
the stream when it can write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from execserver.client.carriers.transport import Waiting
from execserver.client.errors import ConnectFailed, ExecServerError, TransportClosed
from execserver.client.relay.access import RelayAccess
from execserver.client.relay.connector import RelayConnector
from execserver.client.relay.course import RelayCourse, silence, way_lost
from execserver.remote.registry_answers import Bundle
from execserver.remote.rendezvous import ConnectionEnded, RendezvousSocket
from execserver.wire.relay_frames import InvalidFrame
from execserver.wire.relay_stream import StreamError

_LEAST_PAUSE_S: Final = 0.001
_FOREVER: Final = float("inf")


class RelayTransport(Waiting):
    """A `Transport` over one virtual stream; owns the stream, its sockets and its greenlets."""

    carries_binary = True

    def __init__(self, connector: RelayConnector, bundle: Bundle, socket: RendezvousSocket) -> None:
        self._connector = connector
        self._access: RelayAccess = connector.access
        self._socket: RendezvousSocket | None = socket
        self._arrived, self._room, self._taken = Event(), Event(), Event()
        self._alarm = get_hub().loop.timer(0)
        self._alarm_at = _FOREVER
        self._is_closed = False
        self._greenlets: set[gevent.Greenlet[..., None]] = set()
        now = time.monotonic()
        try:
            self._stream = self._access.open_stream(bundle, now)
        except ExecServerError:
            socket.close()
            raise
        self._course = RelayCourse(self._stream, now)
        for frame in self._access.farewells():
            socket.send(frame)
        self._start(socket)
        socket.writer.flush()  # the handshake leaves now, and not with a switch to the writer

    @classmethod
    def connect(cls, connector: RelayConnector, timeout: float) -> RelayTransport:
        """Ask the registry, connect, and begin the handshake.  Raises as `RelayConnector.connect` does."""
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
        course = self._course
        while not course.has_messages:
            if course.error is not None:
                raise course.outcome()
            self._arrived.clear()
            self._arrived.wait()
        message = course.take_message()
        if course.release():
            self._taken.set()
            self._arrived.set()
            self._ready()
        return message

    def send(self, message: bytes) -> None:
        """Queue one message; blocks while more than 1 MiB is queued.  Raises `TransportClosed`."""
        course = self._course
        while course.error is None and not course.has_room:
            self._room.clear()
            self._room.wait()
        if course.error is not None:
            raise course.closed()
        try:
            self._stream.send(message, time.monotonic())
        except StreamError as error:
            self._fail(error)
            raise course.closed() from error
        self._ready()

    @property
    def has_frames(self) -> bool:
        """True if there may be a further frame now."""
        return self._course.has_frames

    def take_frame(self) -> bytes | None:
        """Return the next frame; called by the socket's writer when it can write."""
        try:
            frame = self._stream.next_frame(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return None
        if frame is not None:
            self._set_alarm()
            if not self._room.is_set() and self._course.has_room:
                self._room.set()
        return frame

    def close(self) -> None:
        """End the stream, report it to a reliable executor if that works at once, and close the socket.

        May be called again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._course.error is None:
            self._stream.close()
            self._finish(TransportClosed("the connection is closed"))
        socket, self._socket = self._socket, None
        if socket is not None:
            self._send_shutdown_notice(socket)
            socket.close()
        else:
            self._access.abandon(self._stream)
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

    def _spawn(self, run: Callable[..., None], *args: object) -> None:
        greenlet = gevent.spawn(run, *args)
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)

    def _finish(self, error: Exception) -> None:
        """Note why the stream is over and wake all that wait; `close` releases what is held."""
        if self._course.end(error):
            self._alarm.close()
            for event in (self._arrived, self._room, self._taken):
                event.set()

    def _fail(self, error: Exception) -> None:
        self._access.abandon(self._stream)
        self._finish(error)

    def _ready(self) -> None:
        """Have the writer ask for frames, and set the timer to the next deadline."""
        if self._socket is not None:
            self._socket.writer.ready(self)
        self._set_alarm()

    def _start(self, socket: RendezvousSocket) -> None:
        self._spawn(self._read, socket)
        self._ready()

    def _read(self, socket: RendezvousSocket) -> None:
        course = self._course
        try:
            while course.error is None:
                data = socket.receive()
                if data is None:
                    self._lost(socket, way_lost(socket.ended_because))
                    return
                if course.arrived(data, time.monotonic()):
                    if course.has_messages:
                        self._arrived.set()
                    self._ready()
                if course.is_full and not course.hold():
                    self._wait_until_taken()
        except (StreamError, InvalidFrame) as error:
            self._fail(error)

    def _wait_until_taken(self) -> None:
        """Read nothing more meanwhile, which is all that holds a plain executor back."""
        while self._course.is_holding and self._course.error is None:
            self._taken.clear()
            self._taken.wait()

    def _set_alarm(self) -> None:
        """Set the timer to the stream's deadline, if that is earlier than the timer's."""
        due = self._stream.deadline()
        if due is not None and due < self._alarm_at and self._course.error is None:
            self._alarm_at = due
            self._alarm.close()
            self._alarm = get_hub().loop.timer(max(_LEAST_PAUSE_S, due - time.monotonic()))
            self._alarm.start(self._ring)

    def _ring(self) -> None:
        """Do what is due; runs in the event loop, so nothing here may wait."""
        self._alarm_at = _FOREVER
        if self._course.error is not None:
            return
        try:
            self._stream.tick(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return
        self._ready()
        if self._socket is not None and self._course.is_doubtful(time.monotonic()):
            self._spawn(self._lost, self._socket, silence())  # it waits until the Close frame is written

    def _lost(self, socket: RendezvousSocket, error: TransportClosed) -> None:
        if socket is not self._socket or self._course.error is not None:
            return
        self._socket = None
        socket.close()
        try:
            self._course.lost(time.monotonic())
        except StreamError:
            self._fail(error)
            return
        self._set_alarm()
        self._spawn(self._replace)  # not here: this greenlet is the reader of the lost socket, or the timer's

    def _replace(self) -> None:
        """Connect again for a reliable stream; the stream's own silence limit bounds the time."""
        failures = 0
        while True:
            gevent.sleep(self._course.pause(failures))
            if self._course.error is not None:
                return
            try:
                limit_s = self._connector.options.connect_timeout
                _, socket = self._connector.connect(limit_s, for_new_stream=False)
            except ConnectFailed:
                failures += 1
            except ExecServerError as error:
                self._fail(error)
            else:
                self._resume(socket)
                return

    def _resume(self, socket: RendezvousSocket) -> None:
        if self._course.error is not None:
            socket.close()
            return
        self._socket = socket
        try:
            self._course.restored(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return
        self._start(socket)
