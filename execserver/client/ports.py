"""TCP connections from and to the server's machine, as streams: an extension of this project's server.

`port_log` has the rules of a stream, which goes on over a lost connection to the server, and `port_table`
those of all streams and listeners.
"""

from __future__ import annotations

from uuid import uuid4

import gevent
from gevent.event import Event
from gevent.queue import SimpleQueue

from execserver.client import wire
from execserver.client.errors import ExecServerError, RequestFailed, TransportClosed, UnsupportedByServer
from execserver.client.port_log import PortLog
from execserver.client.port_table import PortTable
from execserver.client.session import Session
from execserver.client.wire import Sandbox
from execserver.protocol.own_methods import (
    PORT_ACK,
    PORT_CLOSE,
    PORT_DATA,
    PORT_LIST,
    PORT_LISTEN,
    PORT_OPEN,
    PORT_RESUME,
)
from execserver.protocol.ports import (
    PortAckParams,
    PortAddress,
    PortDataNotification,
    PortDataParams,
    PortIdParams,
    PortListResponse,
    PortOpenParams,
)
from execserver.protocol.session import NoParams


class PortStream:
    """One connection.  `recv` and `send` may be used by one greenlet each, at the same time."""

    def __init__(self, ports: RemotePorts, port_id: str) -> None:
        self.port_id = port_id
        self._ports = ports
        self._log = PortLog(port_id)
        self._changed = Event()

    @property
    def address(self) -> PortAddress:
        """The address of the far end."""
        return self._log.address

    @property
    def arrived(self) -> int:
        """How many bytes have come."""
        return self._log.arrived

    @property
    def error(self) -> ExecServerError | None:
        """Why both directions have ended, if they have."""
        return self._log.error

    def recv(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises `TransportClosed` if it ended badly."""
        while (data := self._log.take()) is None:
            self._changed.clear()
            self._changed.wait()
        if (received := self._log.due()) is not None:
            self._ports.acknowledge(self.port_id, received)
        return data

    def send(self, data: bytes) -> None:
        """Write all of it; return when the server's kernel has it.  Raises as `recv`, and `RequestFailed`."""
        for params in self._log.pieces(data):
            self._ports.put(params)

    def shutdown(self) -> None:
        """Tell the other side that nothing more comes."""
        for params in self._log.pieces(b"", eof=True):
            self._ports.put(params)

    def close(self) -> None:
        """End the connection.  May be called again."""
        self._ports.close(self.port_id)
        self.fail(TransportClosed("this stream was closed"))

    def begin(self, address: PortAddress) -> None:
        """Note where the far end is."""
        self._log.address = address

    def deliver(self, note: PortDataNotification) -> None:
        """Take bytes in order; what comes twice, or too early after a lost connection, is left out."""
        if not self._log.add(note):
            self._ports.drop(self.port_id)
        self._changed.set()

    def fail(self, error: ExecServerError) -> None:
        """End both directions with an error; what has come can still be read."""
        self._log.fail(error)
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
        self.end()

    def offer(self, stream: PortStream) -> None:
        """Let `accept` return a connection."""
        self.accepted.put(stream)

    def waiting(self) -> int:
        """Return how many connections nobody has taken yet."""
        return self.accepted.qsize()

    def end(self) -> None:
        """Let `accept` return None behind what has come."""
        self.accepted.put(None)


class RemotePorts(PortTable[PortStream]):
    """The ports of one session.  Methods raise `RequestFailed`, or `UnsupportedByServer`."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def open(self, host: str, port: int, *, sandbox: Sandbox = None) -> PortStream:
        """Connect from the server to an address."""
        self._require()
        stream = PortStream(self, uuid4().hex)
        self._streams[stream.port_id] = stream
        try:
            stream.begin(self._session.call(PORT_OPEN, _place(stream.port_id, host, port, sandbox)).address)
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

    def made(self, port_id: str, peer: PortAddress) -> PortStream:
        """Return a new stream of a connection that somebody made."""
        stream = PortStream(self, port_id)
        stream.begin(peer)
        return stream

    def on_resumed(self) -> None:
        """Go on with every stream on a new connection."""
        for stream in list(self._streams.values()):
            gevent.spawn(self._resume, stream)

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
