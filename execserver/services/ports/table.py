"""The forwarded ports of one session: streams and listeners by their ids, and who listens on the machine.

They belong to the session and go on while its client is away; nothing is accepted meanwhile.  What is being
opened can be closed already: its id is reserved before anything waits.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import gevent
from gevent import socket

from execserver.eventloop.ends import of_gevent
from execserver.protocol.envelope import encode_notification
from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.own_methods import PORT_ACCEPTED
from execserver.protocol.ports import PortAcceptedNotification, PortAddress
from execserver.services.clients.attachment import Attachment
from execserver.services.openings import Opening, Openings
from execserver.services.ports.forwarding import MAX_PORTS, Connected, Forwarding
from execserver.services.ports.stream import WIDE_WINDOW_BYTES, WINDOW_BYTES, PortStream

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedPorts

MAX_STREAMS: Final = 256
MAX_LISTENERS: Final = 32
WIDE_STREAMS: Final = 64  # of all sessions: later ones get the small window, which bounds what all keep
_MAX_ID_BYTES = 64
_PAUSE_S = 0.25  # between looks whether more can be accepted


class PortTable:
    """Opens and finds the ports of one session."""

    def __init__(self, forwarding: Forwarding, attachment: Attachment) -> None:
        self.streams: dict[str, PortStream] = {}
        self._forwarding = forwarding
        self._attachment = attachment
        self._listeners: dict[str, _Listener] = {}
        self._openings = Openings("port")  # of streams
        self._listening = Openings("port")  # of listeners
        self._closed = False

    def opening(self, port_id: str) -> Opening:
        """Reserve the id of a stream, for `open`.  Raises RpcError."""
        self._check_stream(port_id)
        return self._openings.reserve(port_id)

    def open(self, opening: Opening, host: str, port: int, *, binary: bool = False) -> PortStream:
        """Connect somewhere; the caller starts the stream.  Raises RpcError, also once it is closed.

        `binary`: the client takes messages in their binary form.
        """
        try:
            found = self._forwarding.connect("port/open", host, port)
            try:
                self._openings.check(opening)
                return self._add(opening.key, found, None, binary)
            except BaseException:
                found.end.close()
                raise
        finally:
            self._openings.release(opening)

    def open_at_once(self, port_id: str, host: str, port: int, *, binary: bool = False) -> PortStream | None:
        """Connect if nothing has to wait for it, which needs no opening; otherwise return None."""
        self._check_stream(port_id)
        found = self._forwarding.connect_at_once("port/open", host, port)
        return None if found is None else self._add(port_id, found, None, binary)

    def listening(self, port_id: str) -> Opening:
        """Reserve the id of a listener, for `listen`.  Raises RpcError."""
        self._check(port_id, len(self._listeners) + len(self._listening), MAX_LISTENERS, "listeners")
        return self._listening.reserve(port_id)

    def listen(self, opening: Opening, host: str, port: int, *, binary: bool = False) -> PortAddress:
        """Listen somewhere, and pass on each connection as a stream.  `binary`, and RpcError, as `open`."""
        try:
            sock = self._forwarding.listen("port/listen", host, port)
            try:
                self._listening.check(opening)
                listener = _Listener(opening.key, sock, self._attachment, self, binary)
            except BaseException:
                sock.close()
                raise
        finally:
            self._listening.release(opening)
        self._listeners[opening.key] = listener
        self._forwarding.open_ports += 1
        return listener.address

    def known(self, port_id: str) -> PortStream:
        """Return a stream.  Raises InvalidRequest."""
        stream = self.streams.get(port_id)
        if stream is None:
            raise InvalidRequest(f"unknown port {port_id}")
        return stream

    def close_one(self, port_id: str) -> None:
        """End a stream or a listener, open or being opened, if there is one with this id."""
        self._openings.cancel(port_id)
        self._listening.cancel(port_id)
        stream = self.streams.get(port_id)
        if stream is not None:
            self._forget(port_id)
            stream.close()
        listener = self._listeners.pop(port_id, None)
        if listener is not None:
            self._forwarding.open_ports -= 1
            listener.close()

    def close(self) -> None:
        """End everything: the session is over."""
        self._closed = True
        self._openings.cancel_all()
        self._listening.cancel_all()
        for port_id in [*self._listeners, *self.streams]:
            self.close_one(port_id)

    def pack(self, out: Outgoing) -> PackedPorts:
        """Return what `unpack` takes; what is being opened is asked for again, or refused."""
        from execserver.handover.records import PackedPorts

        streams = [stream.pack(out) for stream in self.streams.values()]
        return PackedPorts(streams, [listener.pack(out) for listener in self._listeners.values()])

    def unpack(self, packed: PackedPorts, incoming: Incoming) -> None:
        """Go on with ports of a server before this one."""
        for each in packed.streams:
            stream = PortStream.unpacked(each, incoming, self._attachment, self._forget)
            self.streams[stream.port_id] = stream
            self._forwarding.open_ports += 1
            stream.start()
        for port_id, fd, binary, number in packed.listeners:
            sock = socket.socket(fileno=incoming.take(fd))
            self._listeners[port_id] = _Listener(port_id, sock, self._attachment, self, binary, number)
            self._forwarding.open_ports += 1

    @property
    def has_room(self) -> bool:
        """Whether one more stream may be accepted."""
        return len(self.streams) < MAX_STREAMS and self._forwarding.open_ports < MAX_PORTS

    def accepted(self, listener: _Listener, sock: socket.socket) -> None:
        """Make a stream of an accepted connection and tell the client."""
        end = of_gevent(sock)
        try:
            found = Connected.of(end)
        except OSError:  # it is gone again
            end.close()
            return
        stream = self._add(listener.next_id(), found, listener.port_id, listener.binary)
        note = PortAcceptedNotification(
            listen_id=listener.port_id,
            port_id=stream.port_id,
            peer=stream.address,
            window_bytes=stream.window_bytes,
        )
        self._attachment.send(encode_notification(PORT_ACCEPTED.name, note))
        stream.start()

    def _add(self, port_id: str, found: Connected, listen_id: str | None, binary: bool) -> PortStream:
        window = WIDE_WINDOW_BYTES if self._forwarding.open_ports < WIDE_STREAMS else WINDOW_BYTES
        how = (found.address, listen_id, window, binary)
        stream = PortStream(port_id, found.end, self._attachment, self._forget, *how)
        if self._closed:
            stream.close()
            raise InvalidRequest(f"unknown port {port_id}")
        self.streams[port_id] = stream
        self._forwarding.open_ports += 1
        return stream

    def _forget(self, port_id: str) -> None:
        if self.streams.pop(port_id, None) is not None:
            self._forwarding.open_ports -= 1

    def _check_stream(self, port_id: str) -> None:
        self._check(port_id, len(self.streams) + len(self._openings), MAX_STREAMS, "streams")

    def _check(self, port_id: str, number: int, limit: int, what: str) -> None:
        if not 0 < len(port_id.encode()) <= _MAX_ID_BYTES:
            raise InvalidParams(f"portId must be 1 to {_MAX_ID_BYTES} bytes")
        opening = port_id in self._openings or port_id in self._listening
        if opening or port_id in self.streams or port_id in self._listeners:
            raise InvalidRequest(f"port {port_id} already exists")
        if number >= limit:
            raise InvalidRequest(f"at most {limit} {what} may be open in a session")
        if self._forwarding.open_ports >= MAX_PORTS:
            raise InvalidRequest(f"at most {MAX_PORTS} ports may be open on this server")


class _Listener:
    """One listening socket, and the greenlet that accepts."""

    def __init__(
        self,
        port_id: str,
        sock: socket.socket,
        attachment: Attachment,
        table: PortTable,
        binary: bool,
        number: int = 0,
    ) -> None:
        self.port_id = port_id
        self.binary = binary
        host, port, *_ = sock.getsockname()
        self.address = PortAddress(host=host, port=port)
        self._sock = sock
        self._attachment = attachment
        self._table: PortTable | None = table
        self._number = number  # of the stream that was accepted last
        self._greenlet = gevent.spawn(self._accept)

    def pack(self, out: Outgoing) -> tuple[str, int, bool, int]:
        """Return id, descriptor, form of messages, and number."""
        return self.port_id, out.keep(self._sock.fileno()), self.binary, self._number

    def next_id(self) -> str:
        """Return the id of the next stream."""
        self._number += 1
        return f"{self.port_id}/{self._number}"

    def close(self) -> None:
        """Stop listening, before this returns."""
        self._table = None
        # gevent closes a socket that is waited for only in its next turn.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        greenlet = self._greenlet
        del self._greenlet
        greenlet.kill(block=False)

    def _accept(self) -> None:
        while (table := self._table) is not None:
            if self._attachment.sink is None or not table.has_room:
                gevent.sleep(_PAUSE_S)
                continue
            try:
                sock, _ = self._sock.accept()
            except OSError:
                if self._table is None:
                    return
                gevent.sleep(_PAUSE_S)  # no descriptor is left, for instance
                continue
            table.accepted(self, sock)
