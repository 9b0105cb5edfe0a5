"""The client's end of a rendezvous WebSocket, for executor and harness: binary messages in both directions.

The upgrade request holds nothing beyond what RFC 6455 requires but a request id.  The credential is in the
URL, so the URL never appears in a text.  `wire.client_frames` parses and makes frames, and the `websockets`
library decides what is wrong with one.  One greenlet writes, and one greenlet of the owner calls `receive`.

Bounds: `MAX_BYTES` for a frame and for a message, a bounded head of the answer, a time limit for connecting;
a ping every `ping_interval_s`.  Without a pong within `pong_timeout_s` the connection is abandoned, which
also ends a write to a peer that does not read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import gevent
from gevent import socket
from gevent.event import Event
from gevent.hub import Waiter, get_hub
from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.uri import WebSocketURI

from execserver.eventloop.deadline import at_most
from execserver.protocol.errors import os_error_text
from execserver.remote.connecting import ConnectingFailed, RendezvousConnector
from execserver.remote.fair_writer import FairWriter
from execserver.remote.rendezvous_urls import (
    REQUEST_ID,
    new_request_id,
    parse_rendezvous,
    upgrade_status,
)
from execserver.remote.tools import Timing
from execserver.wire.client_end import BINARY_ONLY, TEXT_TOO, ClientEnd
from execserver.wire.client_frames import (
    BINARY_MESSAGE,
    TEXT_MESSAGE,
    ClientFrames,
    binary_frame,
    message_frames,
    ping_frame,
)
from execserver.wire.close_codes import GOING_AWAY
from execserver.wire.ended_protocol import let_go

MAX_BYTES = 256 * 1024
_MOST_BUFFERS = 64  # in one call; the kernel takes 1,024
_READY_READ = 1
_MAX_HEAD_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024  # of the answer to the upgrade
_TURN_MESSAGES = 64
_ODD_BYTES = 8 * 1024  # read at once while frames other than whole messages come: these cost most
_QUEUED_BYTES = 256 * 1024  # of `send`, before it blocks
_SHUTDOWN_NOTICE_S = 1.0
_SWITCHING = 101


class ConnectFailed(Exception):
    """There is no connection; the text says why and contains no part of the URL."""


class UpgradeRefused(ConnectFailed):
    """The server answered the upgrade with another status than 101."""

    def __init__(self, peer: str, status: int, reason: str) -> None:
        super().__init__(f"{peer} answered {status}{f' ({reason})' if reason else ''}")
        self.status = status


class ConnectionEnded(Exception):
    """The connection has ended and nothing can be sent; the text says why."""


class Kind(NamedTuple):
    """The kind of a connection: the limit for a received message, and whether messages are text.

    A connection for text also takes binary messages, with `sends_binary` it sends such only.  `peer` is what
    texts call the other end; `tells_id` gives the upgrade a request id.
    """

    max_bytes: int
    is_text: bool
    sends_binary: bool = False
    peer: str = "the rendezvous"
    tells_id: bool = True


RELAY = Kind(MAX_BYTES, is_text=False)


class RendezvousSocket:
    """One connected WebSocket; owns its socket, which `close` closes.

    `writer` takes frames of many streams in turn; `send` is for an owner with a single stream.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: ClientProtocol,
        timing: Timing,
        kind: Kind = RELAY,
        early: bytes = b"",
        is_secure: bool = False,
    ) -> None:
        """Start; `early` came after the answer to the upgrade, `is_secure` says that the socket uses TLS."""
        self._sock = sock
        self._is_secure = is_secure
        self._kind = kind
        self._timing = timing
        self._messages: deque[bytes] = deque()
        self._frames = ClientFrames(
            TEXT_MESSAGE if kind.is_text else BINARY_MESSAGE,
            kind.max_bytes,
            self._messages.append,
            self._feed_library,
        )
        self._pong = Event()
        takes = TEXT_TOO if kind.is_text else BINARY_ONLY  # the contract drops text messages on a relay
        self._library = ClientEnd(protocol, takes, self._messages.append, self._pong.set)
        self._queue = _Queue()
        self._closed = False
        self._writing = False  # a greenlet is in the system call; another's bytes would go into its frame
        self._turn = 0
        self._is_odd = False  # the last read brought frames other than whole messages
        self._readable = get_hub().loop.io(sock.fileno(), _READY_READ)
        self._waiting: Waiter[None] | None = None  # there while `receive` waits for that
        self._is_drained = False  # the last read left nothing in the kernel, and another would only say so
        self.ended_because = ""
        self.was_sent_away = False  # the peer shuts down: whoever takes its place can be asked at once
        frames = message_frames if kind.is_text and not kind.sends_binary else binary_frame
        self.writer = FairWriter(frames, self._write, None if is_secure else self._write_at_once)
        self._helpers = [gevent.spawn(self._run_writer), gevent.spawn(self._keep_alive)]
        self._frames.take(early)

    @classmethod
    def connect(
        cls,
        url: str,
        environ: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        connector: RendezvousConnector | None = None,
        kind: Kind = RELAY,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> RendezvousSocket:
        """Connect and upgrade.  Raises ConnectFailed or UpgradeRefused.

        Proxies and trusted certificates are those of `environ` (default: this process's own).  `meanwhile` is
        called while the server thinks.
        """
        timing = timing or Timing()
        try:
            uri = parse_rendezvous(url)
        except ValueError as error:
            raise ConnectFailed(str(error)) from None
        sock: socket.socket | None = None
        found: RendezvousSocket | None = None
        try:
            with at_most(timing.connect_s):
                connector = connector or RendezvousConnector(os.environ if environ is None else environ)
                sock = connector.connect(uri)
                protocol, early = _upgrade(sock, uri, kind, meanwhile)
                found = cls(sock, protocol, timing, kind, early, uri.secure)
            if found is None:
                raise ConnectFailed(f"no answer within {timing.connect_s:g} s")
        except (OSError, ConnectingFailed) as error:
            raise ConnectFailed(_os_text(error)) from None
        finally:
            if found is None and sock is not None:
                sock.close()
        return found

    def send(self, message: bytes) -> None:
        """Queue one message; blocks while more than 256 KiB are queued.  Raises ConnectionEnded."""
        while not self._closed and self._queue.size > _QUEUED_BYTES:
            self._queue.room.clear()
            self._queue.room.wait()
        if self._closed:
            raise ConnectionEnded(self.ended_because or "the connection was closed")
        self._queue.add(message)
        self.writer.ready(self._queue)

    def receive(self) -> bytes | None:
        """Return the next message, or None once the connection is over (see `ended_because`)."""
        while not self._messages:
            if self._closed:
                return None
            self.writer.flush_at_once()  # what the messages were answered with, all in one write
            space = self._frames.space
            if self._is_odd:
                gevent.sleep(0)  # pings without pause must not keep other greenlets from their turn
                space = space[:_ODD_BYTES]
            try:
                count = self._read(space)
            except OSError as error:
                self._end(f"the connection broke: {_os_text(error)}")
                continue
            self._is_odd = False
            if count:
                self._frames.arrived(count)
            else:
                self._end(f"{self._kind.peer} closed the connection")
        self._turn += 1
        if self._turn % _TURN_MESSAGES == 0:
            gevent.sleep(0)  # a peer that sends without pause must not keep other greenlets from their turn
        return self._messages.popleft()

    def close(self) -> None:
        """Send a Close frame if none is under way and the peer takes it within a second, and end.

        May be called again.
        """
        if self._closed:
            return
        with at_most(_SHUTDOWN_NOTICE_S):
            try:
                if self._library.is_open and not (self._writing or self.writer.is_inside_a_frame):
                    self._writing = True  # for good: nothing may follow a Close frame
                    self._sock.sendall(self._library.goodbye())
            except (OSError, WebSocketException):
                pass  # it is gone already
        self._end("closed by this end")

    def _feed_library(self, data: bytes) -> bool:
        """Give a frame other than a whole message to the library; return whether the connection goes on."""
        library = self._library
        for answer in library.feed(data):
            self.writer.control(answer)
        self._is_odd = self._is_odd or library.saw_frames
        if library.broken_rule is not None:
            self._end(f"{self._kind.peer} broke the rules of WebSocket: {library.broken_rule}")
        elif not library.is_open:
            code = library.close_code
            self.was_sent_away = code == GOING_AWAY
            self._end(f"{self._kind.peer} closed the connection" + (f" ({code})" if code else ""))
        return not self._closed

    def _read(self, space: memoryview) -> int:
        """Wait for bytes and read them; returns 0 at the end.  Raises OSError."""
        if self._is_drained:
            self._wait_until_readable()
        count = self._sock.recv_into(space)
        # What TLS has decrypted already would not make the socket readable.
        self._is_drained = count < len(space) and not self._is_secure
        return count

    def _wait_until_readable(self) -> None:
        self._waiting = Waiter()
        self._readable.start(self._waiting.switch, None)
        try:
            self._waiting.get()
        finally:
            self._readable.stop()
            self._waiting = None

    def _write(self, buffers: list[bytes]) -> None:
        # There is one writer, so only `close` can have set it: nothing may follow its Close frame.
        if self._writing:
            raise ConnectionAbortedError("the connection is being closed")
        self._writing = True
        # Not by `sendall` at once: it asks for the size of the kernel's buffer each time.
        if len(buffers) == 1:
            sent = self._sock.send(buffers[0])
        elif self._is_secure:
            buffers = [b"".join(buffers)]  # a TLS socket has no sendmsg
            sent = self._sock.send(buffers[0])
        else:
            sent = self._sock.sendmsg(buffers)  # without joining what the kernel takes at once
        if sent < sum(map(len, buffers)):
            self._sock.sendall(memoryview(b"".join(buffers))[sent:])
        self._writing = False

    def _write_at_once(self, buffers: list[bytes]) -> list[bytes]:
        """Write what the kernel takes now and return the rest.  Raises OSError."""
        if self._writing:
            raise ConnectionAbortedError("the connection is being closed")
        if len(buffers) > _MOST_BUFFERS:
            buffers = [b"".join(buffers)]
        try:
            sent = os.writev(self._sock.fileno(), buffers)
        except BlockingIOError:
            return buffers
        return [] if sent == sum(map(len, buffers)) else [b"".join(buffers)[sent:]]

    def _run_writer(self) -> None:
        try:
            self.writer.run()
        except OSError as error:
            self._end(f"the connection broke: {_os_text(error)}")

    def _keep_alive(self) -> None:
        while True:
            gevent.sleep(self._timing.ping_interval_s)
            self._pong.clear()
            self.writer.control(ping_frame())
            if not self._pong.wait(self._timing.pong_timeout_s):
                self._end(f"no pong within {self._timing.pong_timeout_s:g} s")
                return

    def _end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self.ended_because = reason
        self.writer.close()
        me = gevent.getcurrent()
        # This may run in a helper, which must not kill itself half-way.
        gevent.killall([each for each in self._helpers if each is not me], block=False)
        self._helpers.clear()
        self._queue.room.set()
        self._readable.stop()  # before the close, which gevent would delay for it
        if self._waiting is not None:
            get_hub().loop.run_callback(self._waiting.switch, None)
        self._sock.close()
        self._frames.let_go()
        self._library.let_go()


class _Queue:
    """The messages of `send`, as one source of the writer."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self.size = 0
        self.room = Event()

    @property
    def has_frames(self) -> bool:
        return bool(self._messages)

    def add(self, message: bytes) -> None:
        self._messages.append(message)
        self.size += len(message)

    def take_frame(self) -> bytes | None:
        if not self._messages:
            return None
        message = self._messages.popleft()
        self.size -= len(message)
        if self.size <= _QUEUED_BYTES:
            self.room.set()
        return message


def _upgrade(
    sock: socket.socket, uri: WebSocketURI, kind: Kind, meanwhile: Callable[[], None]
) -> tuple[ClientProtocol, bytes]:
    """Return the library's side of the connection, and what came after the answer."""
    protocol = ClientProtocol(uri, max_size=(kind.max_bytes, kind.max_bytes))
    try:
        return protocol, _exchange_heads(sock, protocol, kind, meanwhile)
    except BaseException:
        let_go(protocol)
        raise


def _exchange_heads(
    sock: socket.socket, protocol: ClientProtocol, kind: Kind, meanwhile: Callable[[], None]
) -> bytes:
    """Send the upgrade request and read the answer; return what came after it."""
    request = protocol.connect()
    if kind.tells_id:
        request.headers[REQUEST_ID] = new_request_id()
    protocol.send_request(request)
    sock.sendall(b"".join(protocol.data_to_send()))
    meanwhile()
    received = b""
    while b"\r\n\r\n" not in received:
        data = sock.recv(_READ_BYTES)
        received += data
        if not data or len(received) > _MAX_HEAD_BYTES:
            raise ConnectFailed(f"{kind.peer} did not answer the upgrade in HTTP")
    head, _, early = received.partition(b"\r\n\r\n")
    status, reason = upgrade_status(head)
    if not status:
        raise ConnectFailed(f"{kind.peer} did not answer the upgrade in HTTP")
    if status != _SWITCHING:
        raise UpgradeRefused(kind.peer, status, reason)
    protocol.receive_data(head + b"\r\n\r\n")
    if protocol.handshake_exc is not None:
        raise ConnectFailed(f"{kind.peer} answered the upgrade wrongly: {protocol.handshake_exc}")
    protocol.events_received()  # the answer itself
    return early


def _os_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return os_error_text(error.errno)
    return str(error)
