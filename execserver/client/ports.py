"""TCP connections from and to the server's machine, as streams: an extension of this project's server.

`port_log` has the rules of a stream, which goes on over a lost connection to the server, and `port_table`
those of all streams and listeners.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeVar

import gevent
from gevent.event import Event
from gevent.queue import SimpleQueue

from execserver.client.errors import ExecServerError, TransportClosed
from execserver.client.greenlets.errands import finish, opened, opened_at_once, told_at_once
from execserver.client.greenlets.quick_pieces import QuickPieces
from execserver.client.greenlets.session import Session
from execserver.client.operations import ports as asking
from execserver.client.operations.call import Operation, drive
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.port_table import PortTable
from execserver.client.rules.wire import Sandbox
from execserver.protocol.ports import PortAddress, PortDataNotification, PortListResponse

T = TypeVar("T")


class PortStream:
    """One connection.  `recv` and `send` may be used by one greenlet each, at the same time.

    Who has called `follow` uses it in the event loop instead: `quick` sends, and the log has what comes.
    """

    def __init__(self, ports: RemotePorts, port_id: str) -> None:
        self.port_id = port_id
        self._ports = ports
        self.log = PortLog(port_id)
        self.quick: QuickPieces | None = None  # while somebody follows
        self._changed: Event | None = None  # while somebody waits in `recv`
        self._owed: int | None = None  # what the server is to hear of, by a greenlet
        self._use: Callable[[bytes], int] | None = None
        self._on_change: Callable[[], object] | None = None

    @property
    def address(self) -> PortAddress:
        """The address of the far end."""
        return self.log.address

    @property
    def arrived(self) -> int:
        """How many bytes have come."""
        return self.log.arrived

    @property
    def error(self) -> ExecServerError | None:
        """Why both directions have ended, if they have."""
        return self.log.error

    def recv(self) -> bytes:
        """Return the next bytes, empty ones at the end.  Raises `TransportClosed` if it ended badly."""
        while (data := self.log.take()) is None:
            self._changed = Event()
            with self._ports.waiting():
                self._changed.wait()
        self._acknowledge()
        return data

    def follow(self, use: Callable[[bytes], int], changed: Callable[[], object]) -> QuickPieces:
        """Have `use` called with what comes, where it arrives; return what sends pieces at once.

        `use` must not block, and returns how many bytes it has used up.  `changed` is called in the event
        loop when some are left, at the end and for an error, and as the `attention` of `QuickPieces`.
        """
        self._use, self._on_change = use, changed
        self.quick = self._ports.quick_pieces(self.log, changed)
        return self.quick

    def leave(self) -> None:
        """Undo `follow`: its functions refer to who follows, a reference cycle."""
        self.quick = self._use = self._on_change = None

    def pass_on(self) -> bool:
        """Have what is left used up; return True if neither bytes nor an end remain for the log's `take`."""
        is_all = self._use is not None and self.log.pass_by(self._use)
        self._acknowledge()
        return is_all

    def send(self, data: bytes) -> None:
        """Write all of it; return when the server's kernel has it.  Raises as `recv`, and `RequestFailed`."""
        self._finish_quick()
        self._ports.send(self.log, data)

    def send_all(self, pieces: Iterable[bytes], refused: Callable[[], object] | None = None) -> None:
        """Write pieces one behind the other, and do not wait for the answer to each.

        Up to the server's window of them are on their way before the first is answered.  Otherwise as
        `send`.  `refused` is called in the event loop when a piece is refused: this may be waiting for the
        next one then, and only meets the error behind that.
        """
        self._finish_quick()
        self._ports.send_all(self.log, pieces, refused)

    def shutdown(self) -> None:
        """Tell the other side that nothing more comes."""
        self._finish_quick()
        self._ports.send(self.log, b"", eof=True)

    def _finish_quick(self) -> None:
        if self.quick is not None:
            self.quick.finish()

    def close(self) -> None:
        """End the connection.  May be called again."""
        self._ports.close(self.port_id)
        self.fail(TransportClosed("this stream was closed"))

    def drop(self) -> None:
        """Do as `close`, but do not wait for the answer, if the request can leave at once."""
        if not self.drop_at_once():
            self._ports.close(self.port_id)
        self.fail(TransportClosed("this stream was closed"))

    def drop_at_once(self) -> bool:
        """End the connection for who uses it no more; return False where the request would have to wait."""
        return self._ports.let_go(self.port_id)

    @property
    def piece_bytes(self) -> int:
        """How many bytes are sent at once: larger pieces are cut."""
        return self.log.piece_bytes

    def deliver(self, note: PortDataNotification) -> None:
        """Take bytes in order; what comes twice, or too early after a lost connection, is left out."""
        if not self.log.add(note):
            self._ports.drop(self.port_id)
        elif self._use is not None and self.pass_on():
            return
        self._stir()

    def _stir(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
        if self._on_change is not None:
            self._on_change()

    def _acknowledge(self) -> None:
        if (received := self.log.due()) is None:
            return
        is_told = self._owed is None and self._ports.acknowledge_at_once(self.port_id, received)
        if not is_told:
            self._owed, is_idle = received, self._owed is None
            if is_idle:
                gevent.spawn(self._tell_received)

    def _tell_received(self) -> None:
        # One request at a time, however much comes and however slow the answers.
        while (received := self._owed) is not None:
            self._ports.acknowledge(self.port_id, received)
            if self._owed == received:
                self._owed = None

    def fail(self, error: ExecServerError) -> None:
        """End both directions with an error; what has come can still be read."""
        self.log.fail(error)
        self._stir()

    def resume(self) -> None:
        """Go on, on a new connection to the server."""
        error = self._ports.resume(self.log)
        if error is not None:
            self.fail(error)


class Opened(NamedTuple):
    """A connection, and what has still to be sent of its first bytes."""

    stream: PortStream
    rest: bytes


class PortListener:
    """A port that the server listens on.  Iterating waits for the next connection to it."""

    def __init__(self, ports: RemotePorts, port_id: str) -> None:
        self.port_id = port_id
        self.address = PortAddress(host="", port=0)
        self.accepted: SimpleQueue[PortStream | None] = SimpleQueue()
        self._ports = ports

    def accept(self, timeout: float | None = None) -> PortStream | None:
        """Return the next connection; None when the listener is closed.  Raises `gevent.queue.Empty`."""
        with self._ports.waiting():
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
        self._prefix = os.urandom(12).hex()  # another client may go on with the session
        self._number = 0
        self._dropping = 0

    def open(self, host: str, port: int, *, sandbox: Sandbox = None, first: bytes = b"") -> PortStream:
        """Connect from the server to an address; `first` goes there with it, which saves a round trip."""
        extensions = self._session.extensions
        asking.require(extensions)
        stream = self._new_stream()
        try:
            params = asking.place(stream.port_id, host, port, sandbox)
            rest = self._opened(stream.port_id, asking.connect(params, stream.log, first, extensions))
        except BaseException:
            self._streams.pop(stream.port_id, None)
            raise
        try:
            if rest:
                stream.send(rest)
        except BaseException:
            stream.close()
            raise
        return stream

    def open_at_once(
        self, host: str, port: int, first: bytes, take: Callable[[Opened | ExecServerError], object]
    ) -> bool:
        """Do as `open`, but wait for nothing; return False, with nothing done, where that cannot be.

        `take` is called in the event loop with the stream and what the server has not taken of the first
        bytes, or the error in their place.
        """
        asking.require(self._session.extensions)
        stream = self._new_stream()
        port_id = stream.port_id

        def opened(rest: bytes | ExecServerError) -> None:
            if isinstance(rest, ExecServerError):
                self._forget(port_id)
                take(rest)
            else:
                take(Opened(stream, rest))

        params = asking.place(port_id, host, port, None)
        connecting = asking.connect(params, stream.log, first, self._session.extensions)
        is_asked = opened_at_once(self._session, connecting, asking.close(port_id), opened)
        if not is_asked:
            self._forget(port_id)
        return is_asked

    def listen(self, host: str, port: int = 0, *, sandbox: Sandbox = None) -> PortListener:
        """Listen on the server's machine; port 0 takes a free one."""
        extensions = self._session.extensions
        asking.require(extensions)
        listener = PortListener(self, self._new_id())
        self._listeners[listener.port_id] = listener
        try:
            params = asking.place(listener.port_id, host, port, sandbox)
            listener.address = self._opened(listener.port_id, asking.listen(params, extensions))
        except BaseException:
            self._listeners.pop(listener.port_id, None)
            raise
        return listener

    def list(self) -> PortListResponse:
        """Return who listens on the machine, and the streams of this session."""
        return drive(self._session, asking.listing(self._session.extensions))

    def send(self, log: PortLog, data: bytes, *, eof: bool = False) -> None:
        """Send bytes of a stream."""
        drive(self._session, asking.send(log, data, eof=eof))

    def send_all(
        self, log: PortLog, pieces: Iterable[bytes], refused: Callable[[], object] | None = None
    ) -> None:
        """Send pieces of a stream."""
        from execserver.client.greenlets.pipelining import send_all  # late: few programs send much

        send_all(self._session, log, pieces, refused)

    def acknowledge_at_once(self, port_id: str, received: int) -> bool:
        """Open the window of a stream; return False, with nothing done, where that would have to wait."""
        return told_at_once(self._session, partial(asking.acknowledge, port_id, received))

    def acknowledge(self, port_id: str, received: int) -> None:
        """Open the window of a stream, and wait for the answer."""
        drive(self._session, asking.acknowledge(port_id, received))

    def resume(self, log: PortLog) -> ExecServerError | None:
        """Go on with a stream; return why it has ended, if it has."""
        return drive(self._session, asking.resume(log))

    def close(self, port_id: str) -> None:
        """End a stream or a listener; also if the caller is interrupted."""
        self._forget(port_id)
        finish(self._session, asking.close(port_id))

    def drop(self, port_id: str) -> None:
        """See `PortTable`."""
        self.check_dropping(self._dropping)
        if not self.let_go(port_id):
            self._dropping += 1
            gevent.spawn(self._drop, port_id)

    def let_go(self, port_id: str) -> bool:
        """Close a stream and do not wait for the answer.

        Returns False, with nothing done at the server, where the request cannot leave at once.
        """
        self._forget(port_id)
        return told_at_once(self._session, partial(asking.close, port_id))

    def quick_pieces(self, log: PortLog, attention: Callable[[], object]) -> QuickPieces:
        """Return what sends pieces of a stream at once."""
        return QuickPieces(self._session, log, attention)

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager; inside, the current greenlet counts as waiting for the server."""
        return self._session.waiting()

    def made(self, port_id: str, peer: PortAddress, window_bytes: int) -> PortStream:
        """Return a new stream of a connection that somebody made."""
        stream = PortStream(self, port_id)
        stream.log.begin(peer, window_bytes)
        return stream

    def on_resumed(self) -> None:
        """Go on with every stream on a new connection."""
        for stream in list(self._streams.values()):
            gevent.spawn(stream.resume)

    def _new_stream(self) -> PortStream:
        port_id = self._new_id()
        stream = self._streams[port_id] = PortStream(self, port_id)
        return stream

    def _new_id(self) -> str:
        self._number += 1
        return f"{self._prefix}-{self._number}"

    def _opened(self, port_id: str, opening: Operation[T]) -> T:
        return opened(self._session, opening, asking.close(port_id))

    def _drop(self, port_id: str) -> None:
        try:
            drive(self._session, asking.close(port_id))
        finally:
            self._dropping -= 1

    def _forget(self, port_id: str) -> None:
        self._streams.pop(port_id, None)
        self._listeners.pop(port_id, None)
