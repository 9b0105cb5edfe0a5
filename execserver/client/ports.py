"""TCP connections from and to the server's machine, as streams: an extension of this project's server.

A stream goes on over a lost connection to the server: both sides know how many bytes the other one has.  At
most 4 MiB of a stream wait to be read, and 256 connections of a listener to be taken; what a server sends
beyond is closed.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from uuid import uuid4

import gevent
import msgspec
from gevent.event import Event
from gevent.queue import SimpleQueue

from execserver.client import wire
from execserver.client.errors import (
    ExecServerError,
    RequestFailed,
    TransportClosed,
    UnsupportedByServer,
    kept,
)
from execserver.client.session import Session
from execserver.client.wire import Sandbox
from execserver.protocol.own_methods import (
    PORT_ACCEPTED,
    PORT_ACK,
    PORT_BYTES,
    PORT_CLOSE,
    PORT_CLOSED,
    PORT_DATA,
    PORT_LIST,
    PORT_LISTEN,
    PORT_OPEN,
    PORT_RESUME,
)
from execserver.protocol.ports import (
    PortAcceptedNotification,
    PortAckParams,
    PortAddress,
    PortClosedNotification,
    PortDataNotification,
    PortDataParams,
    PortIdParams,
    PortListResponse,
    PortOpenParams,
)
from execserver.protocol.session import NoParams

_PIECE: Final = 64 * 1024
# Far beyond the server's own window and limit: one that gets here is at fault.
_MOST_UNREAD: Final = 4 * 1024 * 1024
_MOST_ACCEPTED: Final = 256


class PortStream:
    """One connection.  `recv` and `send` may be used by one greenlet each, at the same time."""

    def __init__(self, ports: RemotePorts, port_id: str) -> None:
        self.port_id = port_id
        self.address = PortAddress(host="", port=0)  # of the far end
        self.error: ExecServerError | None = None
        self._ports = ports
        self._ready: deque[bytes] = deque()
        self._arrived = 0  # bytes from the socket, taken or not
        self._taken = 0
        self._acknowledged = 0
        self._sent = 0
        self._eof = False
        self._changed = Event()

    def recv(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises `TransportClosed` if it ended badly."""
        while not self._ready:
            if self._eof:
                return b""
            if self.error is not None:
                raise kept(self.error)
            self._changed.clear()
            self._changed.wait()
        data = self._ready.popleft()
        self._taken += len(data)
        # Half of the window at a time: an answer for each piece would cost more than the piece.
        if self._taken - self._acknowledged >= 2 * _PIECE:
            self._acknowledged = self._taken
            self._ports.acknowledge(self.port_id, self._taken)
        return data

    def send(self, data: bytes) -> None:
        """Write all of it; return when the server's kernel has it.  Raises as `recv`, and `RequestFailed`."""
        for start in range(0, len(data), _PIECE):
            self._put(data[start : start + _PIECE], eof=False)

    def shutdown(self) -> None:
        """Tell the other side that nothing more comes."""
        self._put(b"", eof=True)

    def close(self) -> None:
        """End the connection.  May be called again."""
        self._ports.close(self.port_id)
        self.fail(TransportClosed("this stream was closed"))

    def _put(self, piece: bytes, *, eof: bool) -> None:
        if self.error is not None:
            raise kept(self.error)
        params = PortDataParams(port_id=self.port_id, offset=self._sent, chunk=piece, eof=eof)
        self._sent += len(piece)
        self._ports.put(params)

    def deliver(self, note: PortDataNotification) -> None:
        """Take bytes in order; what comes twice, or too early after a lost connection, is left out."""
        if note.offset != self._arrived or self.error is not None:
            return
        if self._arrived - self._taken + len(note.chunk) > _MOST_UNREAD:
            self.fail(TransportClosed("the server sent more than its window allows"))
            self._ports.drop(self.port_id)
            return
        if note.chunk:
            self._ready.append(note.chunk)
            self._arrived += len(note.chunk)
        self._eof = self._eof or note.eof
        self._changed.set()

    @property
    def arrived(self) -> int:
        """How many bytes have come."""
        return self._arrived

    def fail(self, error: ExecServerError) -> None:
        """End both directions with an error; what has come can still be read."""
        if self.error is None:
            self.error = kept(error)
        self._changed.set()


class PortListener:
    """A port that the server listens on.  Iterating waits for the next connection to it."""

    def __init__(self, ports: RemotePorts, port_id: str) -> None:
        self.port_id = port_id
        self.address = PortAddress(host="", port=0)
        self.accepted: SimpleQueue[PortStream | None] = SimpleQueue()
        self._ports = ports

    def accept(self, timeout: float | None = None) -> PortStream | None:
        """Return the next connection; None when the listener is closed.  Raises `gevent.queue.Empty`."""
        return self.accepted.get(timeout=timeout)

    def close(self) -> None:
        """Listen no longer; accepted streams go on."""
        self._ports.close(self.port_id)
        self.accepted.put(None)


class RemotePorts:
    """The ports of one session.  Methods raise `RequestFailed`, or `UnsupportedByServer`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._streams: dict[str, PortStream] = {}
        self._listeners: dict[str, PortListener] = {}

    def open(self, host: str, port: int, *, sandbox: Sandbox = None) -> PortStream:
        """Connect from the server to an address."""
        self._require()
        stream = PortStream(self, uuid4().hex)
        self._streams[stream.port_id] = stream
        try:
            stream.address = self._session.call(
                PORT_OPEN, _place(stream.port_id, host, port, sandbox)
            ).address
        except BaseException:
            self._streams.pop(stream.port_id, None)
            raise
        return stream

    def listen(self, host: str, port: int = 0, *, sandbox: Sandbox = None) -> PortListener:
        """Listen on the server's machine; port 0 takes a free one."""
        self._require()
        listener = PortListener(self, uuid4().hex)
        self._listeners[listener.port_id] = listener
        try:
            found = self._session.call(PORT_LISTEN, _place(listener.port_id, host, port, sandbox))
        except BaseException:
            self._listeners.pop(listener.port_id, None)
            raise
        listener.address = found.address
        return listener

    def list(self) -> PortListResponse:
        """Return who listens on the machine, and the streams of this session."""
        self._require()
        return self._session.call(PORT_LIST, NoParams())

    def put(self, params: PortDataParams) -> None:
        """Send bytes of a stream; offsets make it safe to send them again."""
        self._session.call(PORT_DATA, params, resend=True)

    def acknowledge(self, port_id: str, received: int) -> None:
        """Open the window of a stream, without waiting for the answer."""
        gevent.spawn(self._quietly, port_id, received)

    def close(self, port_id: str) -> None:
        """End a stream or a listener."""
        self._streams.pop(port_id, None)
        self._listeners.pop(port_id, None)
        try:
            self._session.call(PORT_CLOSE, PortIdParams(port_id=port_id), resend=True)
        except ExecServerError:
            pass  # it ends with the session

    def drop(self, port_id: str) -> None:
        """Close a stream without waiting for the answer."""
        gevent.spawn(self.close, port_id)

    def on_notification(self, method: str, params: msgspec.Raw) -> None:
        """Take what the server tells about ports.  Raises `ProtocolViolation` for an invalid notification."""
        if method == PORT_BYTES.name:
            self.on_data(wire.decode(PortDataNotification, params, method))
        elif method == PORT_CLOSED.name:
            closed = wire.decode(PortClosedNotification, params, method)
            self.on_closed(closed.port_id, closed.error)
        elif method == PORT_ACCEPTED.name:
            self.on_accepted(wire.decode(PortAcceptedNotification, params, method))

    def on_data(self, note: PortDataNotification) -> None:
        """Pass bytes to their stream."""
        stream = self._streams.get(note.port_id)
        if stream is not None:
            stream.deliver(note)

    def on_closed(self, port_id: str, error: str | None) -> None:
        """Note that a stream has ended."""
        stream = self._streams.get(port_id)
        if stream is not None:
            stream.fail(TransportClosed(error or "the connection has ended"))

    def on_accepted(self, note: PortAcceptedNotification) -> None:
        """Make a stream of a connection to a listener."""
        listener = self._listeners.get(note.listen_id)
        stream = PortStream(self, note.port_id)
        stream.address = note.peer
        if listener is None or listener.accepted.qsize() >= _MOST_ACCEPTED:
            self.drop(note.port_id)
            return
        self._streams[note.port_id] = stream
        listener.accepted.put(stream)

    def on_resumed(self) -> None:
        """Go on with every stream on a new connection."""
        for stream in list(self._streams.values()):
            gevent.spawn(self._resume, stream)

    def on_ended(self, error: ExecServerError) -> None:
        """Fail everything: the session is over."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.accepted.put(None)

    def _resume(self, stream: PortStream) -> None:
        try:
            self._session.call(PORT_RESUME, PortAckParams(port_id=stream.port_id, received=stream.arrived))
        except ExecServerError as error:
            if isinstance(error, RequestFailed):  # else the next connection tries again
                stream.fail(TransportClosed(f"the connection has ended meanwhile: {error}"))

    def _quietly(self, port_id: str, received: int) -> None:
        try:
            self._session.call(PORT_ACK, PortAckParams(port_id=port_id, received=received), resend=True)
        except ExecServerError:
            pass  # the stream hears of it by itself

    def _require(self) -> None:
        if self._session.extensions.port_forward is None:
            raise UnsupportedByServer("this server does not forward ports")


def _place(port_id: str, host: str, port: int, sandbox: Sandbox) -> PortOpenParams:
    return PortOpenParams(port_id=port_id, host=host, port=port, sandbox=wire.sandbox_context(sandbox))
