"""One forwarded TCP connection: a socket of the server, and offsets that survive a lost connection.

Each direction has a window.  What came from the socket is kept until the client has acknowledged it, and the
socket is not read while its window is full; so a client that was away gets it again.  What came from the
client is acknowledged by the answer to its request, once the kernel has taken it.  Offsets count bytes from
the beginning, so nothing is written twice.

Callbacks of the event loop read a little and write.  A greenlet reads where much comes, and where the client
lets it wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent import socket
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop.ends import READABLE, WRITABLE, End, of_gevent
from execserver.protocol.envelope import encode_notification
from execserver.protocol.errors import InvalidRequest, os_error_text
from execserver.protocol.lifting import LEAST_BYTES
from execserver.protocol.own_methods import PORT_CLOSED
from execserver.protocol.ports import PortAddress, PortClosedNotification
from execserver.protocol.templates import PortTemplates
from execserver.services.clients.attachment import Attachment
from execserver.wire import pieces

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedPort

WINDOW_BYTES: Final = 256 * 1024
WIDE_WINDOW_BYTES: Final = 1024 * 1024
_MOST_AT_ONCE: Final = 224 * 1024
_SHORT_BYTES: Final = 16 * 1024  # read by the event loop itself; behind as much there is mostly more


class PortStream:
    """Owns its socket from the start.  `on_end` is called once nothing of it is needed any more."""

    def __init__(
        self,
        port_id: str,
        end: End,
        attachment: Attachment,
        on_end: Callable[[str], None],
        address: PortAddress,
        listen_id: str | None = None,
        window_bytes: int = WINDOW_BYTES,
        binary: bool = False,
    ) -> None:
        self.port_id = port_id
        self.window_bytes = window_bytes
        self.listen_id = listen_id
        self.address = address
        self.sent = 0  # from the socket to the client
        self.received = 0  # from the client to the kernel
        self._socket = end
        self._attachment = attachment
        self._on_end = on_end
        self._templates = PortTemplates(port_id)
        self._in_binary = binary
        self._kept: deque[bytes] = deque()
        self._acknowledged = 0
        self._queue: deque[bytes] = deque()
        self._queued = 0  # offset behind the queue
        self._eof_from_client = self._eof_written = self._eof_from_socket = False
        self._over = False
        self._failure: str | None = None
        self._moved: Event | None = None  # made by the first that waits
        self._started = False
        self._watcher: Any = None  # of the socket, while more may come
        self._reading: gevent.Greenlet[[], None] | None = None  # while much comes, or reading has to wait
        self._writing: Any = None  # the same while something is queued

    def start(self) -> None:
        """Begin to read and write; called once the answer is queued."""
        if self._over:
            return
        self._started = True
        if not self._eof_from_socket:
            self._watcher = get_hub().loop.io(self._socket.fileno(), READABLE)
            self._watcher.start(self._readable)
        self._write_on()

    def put_first(self, chunk: bytes) -> int:
        """Write of the first bytes what the kernel takes at once, before `start`; return how many."""
        if chunk and not self._over:
            try:
                self.received = self._queued = self._socket.send_now(chunk)
            except OSError:
                pass  # the next bytes, or reading, meet it again
        return self.received

    def put(self, offset: int, chunk: bytes, eof: bool) -> int:
        """Write bytes, or queue what the kernel does not take; return the offset behind them.

        It is for `wait_until_taken`.  What was received before is ignored.  Raises InvalidRequest for a hole
        and beyond the window, which ends the stream.
        """
        if offset > self._queued:
            raise InvalidRequest(f"port {self.port_id}: bytes are missing before offset {offset}")
        fresh = chunk[self._queued - offset :]
        if self._queued + len(fresh) - self.received > self.window_bytes:
            text = f"port {self.port_id}: more than {self.window_bytes} bytes in flight"
            self._end(text)
            raise InvalidRequest(text)
        end = offset + len(chunk)
        if not self._over and not self._eof_from_client:
            self._queued += len(fresh)
            if rest := self._written_at_once(fresh):
                pieces.append(self._queue, rest)
            self._eof_from_client = eof and end == self._queued
            if self._eof_from_client:
                get_hub().loop.run_callback(self._write_on)  # behind the answer, as it may be the end
            elif self._queue:
                self._write_on()
            self._stir()
        return end

    def has_taken(self, end: int) -> bool:
        """Return whether `wait_until_taken` would return at once."""
        return self.received >= end or self._over

    def wait_until_taken(self, end: int) -> int:
        """Block until the kernel has the bytes before an offset, or the stream is over; return how many."""
        while not self.has_taken(end):
            self._wait()
        return self.received

    def acknowledge(self, received: int) -> None:
        """Note that the client has so many bytes.  Raises InvalidRequest for more than were sent."""
        if received > self.sent:
            raise InvalidRequest(f"port {self.port_id}: only {self.sent} bytes were sent")
        while self._kept and self._acknowledged + len(self._kept[0]) <= received:
            self._acknowledged += len(self._kept.popleft())
        if self._kept and received > self._acknowledged:
            self._kept[0] = self._kept[0][received - self._acknowledged :]
        self._acknowledged = max(received, self._acknowledged)
        self._stir()
        self._forget_if_done()

    def send_again(self) -> None:
        """Send everything that is not acknowledged to the client, which is back."""
        offset = self._acknowledged
        for data in list(self._kept):
            self._send(offset, data)
            offset += len(data)
        if self._eof_from_socket:
            self._send(self.sent, b"")
        if self._over:
            self._tell_closed()

    def pack(self, out: Outgoing) -> PackedPort:
        """Return what `unpacked` makes an equal stream of."""
        from execserver.handover.records import PackedPort

        return PackedPort(
            port_id=self.port_id,
            fd=-1 if self._over else out.keep(self._socket.fileno()),
            listen_id=self.listen_id,
            address=(self.address.host, self.address.port),
            window_bytes=self.window_bytes,
            sent=self.sent,
            received=self.received,
            acknowledged=self._acknowledged,
            queued=self._queued,
            kept=list(self._kept),
            queue=list(self._queue),
            eof_from_client=self._eof_from_client,
            eof_written=self._eof_written,
            eof_from_socket=self._eof_from_socket,
            failure=self._failure,
            in_binary=self._in_binary,
        )

    @classmethod
    def unpacked(
        cls, packed: PackedPort, incoming: Incoming, attachment: Attachment, on_end: Callable[[str], None]
    ) -> PortStream:
        """Return the stream that was packed; `start` lets it go on."""
        over = packed.fd < 0
        sock = socket.socket() if over else socket.socket(fileno=incoming.take(packed.fd))
        address = PortAddress(host=packed.address[0], port=packed.address[1])
        how = (address, packed.listen_id, packed.window_bytes, packed.in_binary)
        stream = cls(packed.port_id, of_gevent(sock), attachment, on_end, *how)
        if over:
            stream._socket.close()
        stream.sent, stream.received = packed.sent, packed.received
        stream._acknowledged, stream._queued = packed.acknowledged, packed.queued
        stream._kept.extend(packed.kept)
        stream._queue.extend(packed.queue)
        stream._eof_from_client, stream._eof_written = packed.eof_from_client, packed.eof_written
        stream._eof_from_socket, stream._failure = packed.eof_from_socket, packed.failure
        stream._over = over
        return stream

    def close(self) -> None:
        """End at once; the client is told nothing."""
        self._over = True
        reading, self._reading = self._reading, None
        if reading is not None and reading is not gevent.getcurrent():
            reading.kill(block=False)
        self._stop_watching()  # before the close: the loop aborts on a watcher of a closed descriptor
        self._stop_writing()
        self._socket.close()
        self._stir()
        self._kept.clear()
        self._queue.clear()

    @property
    def _room(self) -> int:
        """How many bytes may be read."""
        return self.window_bytes - (self.sent - self._acknowledged)

    def _readable(self) -> None:
        """Pass on a little that has come.  Called in the event loop, which must not wait."""
        room, attachment = self._room, self._attachment
        if room <= 0 or not attachment.may_go_on:
            self._read_on()
            return
        try:
            data = self._socket.recv_now(min(room, _SHORT_BYTES))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(_text(error))
            return
        self._pass_on(data)
        if not data:
            self._stop_watching()
            self._end_if_both_ended()
        elif len(data) == _SHORT_BYTES and not self._over:
            self._read_on()

    def _read_on(self) -> None:
        self._watcher.stop()
        self._reading = gevent.spawn(self._read)

    def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def _read(self) -> None:
        """Read until little is left, or the end."""
        try:
            while not self._over:
                room = self._room
                if room <= 0:
                    self._wait()
                    continue
                self._attachment.wait_for_room()
                data = self._socket.recv(min(room, self.window_bytes // 4, _MOST_AT_ONCE))
                self._pass_on(data)
                if len(data) < _SHORT_BYTES:
                    break
        except OSError as error:
            self._end(_text(error))
        self._reading = None
        if self._eof_from_socket:
            self._stop_watching()
            self._end_if_both_ended()
        elif not self._over:
            self._watcher.start(self._readable)

    def _pass_on(self, data: bytes) -> None:
        offset = self.sent
        if data:
            pieces.append(self._kept, data)
            self.sent += len(data)
        else:
            self._eof_from_socket = True
        self._send(offset, data)

    def _send(self, offset: int, data: bytes) -> None:
        """Send bytes to the client; none are the end."""
        templates, attachment = self._templates, self._attachment
        is_long = len(data) >= LEAST_BYTES
        if not is_long:
            attachment.send_at_once(b"".join(templates.data(offset, data, eof=not data)))
        elif self._in_binary and attachment.carries_binary and templates.have_binary_form:
            attachment.send_binary(*templates.in_binary(offset, data))
        else:
            attachment.send(*templates.data(offset, data, eof=False))

    def _written_at_once(self, data: bytes) -> bytes:
        """Write what the kernel takes now, if nothing waits before it; return the rest."""
        # Nearly always all of it, so no greenlet has to be woken for it, nor one made to wait.
        if not data or self._queue or not self._started:
            return data
        try:
            written = self._socket.send_now(data)
        except BlockingIOError:
            return data
        except OSError as error:
            self._end(_text(error))
            return b""
        self.received += written
        return data[written:]

    def _write_on(self) -> None:
        """Have what waits written as soon as the kernel takes it, and the end."""
        if not self._started or self._over:
            return
        if self._queue:
            if self._writing is None:
                self._writing = get_hub().loop.io(self._socket.fileno(), WRITABLE)
                self._writing.start(self._write)
        elif self._eof_from_client and not self._eof_written:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._end(_text(error))
                return
            self._eof_written = True
            self._end_if_both_ended()

    def _write(self) -> None:
        """Write of the oldest piece what the kernel takes.  Called in the event loop while one waits."""
        data = self._queue[0]
        try:
            taken = self._socket.send_now(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(_text(error))
            return
        self.received += taken
        if taken < len(data):
            self._queue[0] = data[taken:]
        else:
            self._queue.popleft()
        if not self._queue:
            self._stop_writing()
            self._write_on()
        self._stir()

    def _stop_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def _wait(self) -> None:
        if self._moved is None:
            self._moved = Event()
        self._moved.wait()

    def _stir(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set()

    def _end_if_both_ended(self) -> None:
        if self._eof_written and self._eof_from_socket:
            self._end(None)

    def _end(self, failure: str | None) -> None:
        if self._over:
            return
        self._failure = failure
        kept = list(self._kept)
        self.close()
        self._kept.extend(kept)  # the client may still fetch what came before the end
        self._tell_closed()
        self._forget_if_done()

    def _tell_closed(self) -> None:
        note = PortClosedNotification(port_id=self.port_id, error=self._failure)
        self._attachment.send(encode_notification(PORT_CLOSED.name, note))

    def _forget_if_done(self) -> None:
        if self._over and self._acknowledged == self.sent and self._attachment.sink is not None:
            self._on_end(self.port_id)


def _text(error: OSError) -> str:
    return os_error_text(error.errno) if error.errno else str(error)
