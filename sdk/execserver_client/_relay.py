"""Messages through a relay, on asyncio: one encrypted virtual stream over WebSockets that may be replaced.

The protocol is `wire.relay_stream`, and `client.relay.course` says what is done when, for gevent, too;
here are the sockets, the clock and the tasks.  With a reliable executor a lost WebSocket is replaced and no
message is lost; calls in flight do not notice.  With a plain one the transport ends with its WebSocket, and
the session above it connects again.

Everything but connecting happens in callbacks of the event loop, and one timer keeps time; so between two
losses of its WebSocket a transport has no task.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import Final

from execserver.client.errors import ConnectFailed, ExecServerError, TransportClosed
from execserver.client.relay.course import RelayCourse, silence, way_lost
from execserver.remote.registry_answers import Bundle
from execserver.wire.client_frames import binary_frame
from execserver.wire.relay_frames import InvalidFrame
from execserver.wire.relay_stream import StreamError
from execserver_client._relay_connector import RelayConnector, Upgraded
from execserver_client._websocket_link import Kind, WebSocketLink

RELAY: Final = Kind(256 * 1024, 256 * 1024, is_text=False, peer="the rendezvous")
_LEAST_PAUSE_S: Final = 0.001
_BATCH_BYTES: Final = 64 * 1024  # of frames in one write


class RelayTransport:
    """A `Transport` over one virtual stream; owns the stream and its WebSockets."""

    carries_binary = True

    def __init__(self, connector: RelayConnector, found: Bundle, upgraded: Upgraded) -> None:
        """Begin the handshake.  Raises `RegistryRefused`, `ConnectFailed`."""
        self._connector = connector
        self._access = connector.access
        self._loop = asyncio.get_running_loop()
        self._link: WebSocketLink | None = None
        self._ending: list[WebSocketLink] = []  # the last one that was lost, and the one of the end
        self._is_closed = False
        self._arrived: asyncio.Future[None] | None = None  # there while `receive` waits
        self._senders: dict[asyncio.Future[None], None] = {}  # of `send` that wait for room, oldest first
        self._alarm: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None
        self._replacing: asyncio.Task[None] | None = None
        now = time.monotonic()
        self._stream = self._access.open_stream(found, now)
        self._course = RelayCourse(self._stream, now)
        if not self._begin(upgraded):
            raise ConnectFailed("the relay ended the connection at once")

    @classmethod
    async def connect(cls, connector: RelayConnector, timeout: float) -> RelayTransport:
        """Ask the registry, connect, and begin the handshake.  Raises as `RelayConnector.connect` does."""
        found, upgraded = await connector.connect(timeout)
        try:
            return cls(connector, found, upgraded)
        finally:
            await upgraded.conversation.close()  # unless it was taken over

    @property
    def is_reliable(self) -> bool:
        """True if the executor has announced that it resumes streams."""
        return self._stream.is_reliable

    async def receive(self) -> bytes | None:
        """Return the next message (see `Transport`); never None, since a stream has no orderly end.

        Raises `RegistryRefused` when the executor says that the registry does not let this client in.
        """
        course = self._course
        while not course.has_messages:
            if course.error is not None:
                raise course.outcome()
            self._arrived = self._loop.create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        message = course.take_message()
        if course.release():
            if self._link is not None:
                self._link.resume_reading()
            self._pump_soon()
        return message

    async def send(self, message: bytes) -> None:
        """Queue one message; waits while more than 1 MiB is queued.  Raises `TransportClosed`."""
        course = self._course
        while course.error is None and not course.has_room:
            waiter = self._loop.create_future()
            self._senders[waiter] = None
            try:
                await waiter
            finally:
                del self._senders[waiter]
        if course.error is not None:
            raise course.closed()
        try:
            self._stream.send(message, time.monotonic())
        except StreamError as error:
            self._fail(error)
            raise course.closed() from error
        self._pump_soon()

    async def close(self) -> None:
        """End the stream, report it to a reliable executor if that works at once, and close the socket.

        Nothing is left when it returns.
        """
        if not self._is_closed:
            self._is_closed = True
            self._end_stream()
        try:
            for link in self._ending:
                await asyncio.shield(link.gone)
        except asyncio.CancelledError:
            for link in self._ending:
                link.abort()
            raise
        if self._replacing is not None:
            await asyncio.wait([self._replacing])

    def _end_stream(self) -> None:
        if self._course.error is None:
            self._stream.close()
            self._finish(TransportClosed("the connection is closed"))
        if self._replacing is not None:
            self._replacing.cancel()
        link, self._link = self._link, None
        if link is None:
            self._access.abandon(self._stream)
            return
        self._ending.append(link)
        self._send_shutdown_notice(link)
        link.close()

    def on_message(self, message: bytes) -> None:
        """Take a message of the WebSocket."""
        course = self._course
        if course.error is not None:
            return
        try:
            course.arrived(message, time.monotonic())
            if course.is_full and not course.hold() and self._link is not None:
                self._link.pause_reading()
        except (StreamError, InvalidFrame) as error:
            self._fail(error)

    def on_read(self) -> None:
        """Answer what was read, and wake who waits for messages."""
        if self._course.has_messages:
            self._wake_receiver()
        self._pump()

    def on_room(self) -> None:
        """Write on."""
        self._pump()

    def on_end(self, reason: str) -> None:
        """Replace a WebSocket that has ended."""
        self._lost(way_lost(reason))

    def _begin(self, upgraded: Upgraded, *, again: bool = False) -> bool:
        """Go on over a connection; return False if that has ended already.

        With `again` it replaces one that was lost.  Raises StreamError if the stream ends.
        """
        link = WebSocketLink(RELAY, self)
        try:
            transport = upgraded.conversation.take_over(link)
        except ConnectionError:
            return False
        link.attach(transport)
        self._link = link
        if again:
            self._course.restored(time.monotonic())
        for frame in self._access.farewells():
            link.write(binary_frame(frame))
        link.take(upgraded.early)
        self._pump()
        return True

    def _pump_soon(self) -> None:
        """Write after what happens now: several messages go out together."""
        if self._pumping is None:
            self._pumping = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write the stream's frames while the socket takes them, and set the timer to the next deadline."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        course, link = self._course, self._link
        while link is not None and link.can_write and course.has_frames and self._write_batch(link):
            pass
        if self._senders and course.has_room:
            self._wake_senders()
        self._set_alarm()

    def _write_batch(self, link: WebSocketLink) -> bool:
        """Write some frames at once; return False when there are no more."""
        buffers: list[bytes] = []
        size = 0
        while size < _BATCH_BYTES:
            try:
                frame = self._stream.next_frame(time.monotonic())
            except StreamError as error:
                self._fail(error)
                return False
            if frame is None:
                break
            buffers += binary_frame(frame)
            size += len(frame)
        if buffers:
            link.write(buffers)
        return size >= _BATCH_BYTES

    def _send_shutdown_notice(self, link: WebSocketLink) -> None:
        """Send the stream's last frame, if it has one."""
        try:
            frame = self._stream.next_frame(time.monotonic())
        except StreamError:
            return  # the stream has no last frame
        if frame is not None:
            link.write(binary_frame(frame))

    def _finish(self, error: Exception) -> None:
        """Note why the stream is over and wake all that wait; `close` releases what is held."""
        if self._course.end(error):
            for handle in (self._alarm, self._pumping):
                if handle is not None:
                    handle.cancel()
            self._alarm = self._pumping = None
            self._wake_receiver()
            self._wake_senders()

    def _fail(self, error: Exception) -> None:
        self._access.abandon(self._stream)
        self._finish(error)

    def _wake_receiver(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _wake_senders(self) -> None:
        for waiter in self._senders:
            if not waiter.done():
                waiter.set_result(None)

    def _set_alarm(self) -> None:
        """Set the timer to the stream's deadline, if that is earlier than the timer's."""
        due = self._stream.deadline()
        if due is None or self._course.error is not None:
            return
        at = self._loop.time() + max(_LEAST_PAUSE_S, due - time.monotonic())
        if self._alarm is not None:
            if self._alarm.when() <= at + _LEAST_PAUSE_S:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        """Do what is due."""
        self._alarm = None
        if self._course.error is not None:
            return
        try:
            self._stream.tick(time.monotonic())
        except StreamError as error:
            self._fail(error)
            return
        self._pump()
        if self._link is not None and self._course.is_doubtful(time.monotonic()):
            self._lost(silence())

    def _lost(self, error: TransportClosed) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        link.abort()
        self._ending = [link]
        if self._course.error is not None:
            return
        try:
            self._course.lost(time.monotonic())
        except StreamError:
            self._fail(error)
            return
        self._set_alarm()
        self._replacing = self._loop.create_task(self._replace(), context=Context())  # for no caller

    async def _replace(self) -> None:
        """Connect again for a reliable stream; the stream's own silence limit bounds the time."""
        failures = 0
        while True:
            await asyncio.sleep(self._course.pause(failures))
            if self._course.error is not None:
                return
            upgraded: Upgraded | None = None
            try:
                _, upgraded = await self._connector.connect(self._connector.options.connect_timeout)
            except ConnectFailed:
                failures += 1
            except ExecServerError as error:
                self._fail(error)
                return
            else:
                if self._resume(upgraded):
                    return
                failures += 1
            finally:
                if upgraded is not None:
                    await upgraded.conversation.close()  # unless it was taken over

    def _resume(self, upgraded: Upgraded) -> bool:
        """Go on over another connection; return whether nothing more is to be done."""
        if self._course.error is not None:
            return True
        try:
            return self._begin(upgraded, again=True)
        except StreamError as error:
            self._fail(error)
            return True
