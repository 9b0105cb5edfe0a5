"""The client's end of a rendezvous websocket: binary messages both ways, whoever uses it.

The upgrade request holds nothing beyond what RFC 6455 asks for; the credential is in the URL, so that never
appears in a text.  Frames are cut and made by `wire.client_frames`, and judged by the `websockets` library.
One greenlet writes, one greenlet of the owner's calls `receive`.

Bounds: `MAX_BYTES` for a frame and for a message, a bounded head of the answer, a limit on connecting; a ping
every `ping_interval_s`, and without its pong within `pong_timeout_s` the connection is given up: that ends
a write that nobody reads too.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import gevent
from gevent import socket
from gevent.event import Event
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import WebSocketURI, parse_uri

from execserver.protocol.errors import os_error_text
from execserver.remote.dialling import Dialling, DiallingFailed
from execserver.remote.fair_writer import FairWriter
from execserver.services.deadline import at_most
from execserver.wire.client_frames import (
    BINARY_MESSAGE,
    TEXT_MESSAGE,
    ClientFrames,
    binary_frame,
    ping_frame,
    text_frames,
)
from execserver.wire.ended_protocol import let_go

MAX_BYTES = 256 * 1024
_MAX_HEAD_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024  # of the answer to the upgrade
_TURN_MESSAGES = 64
_ODD_BYTES = 8 * 1024  # read at a time while frames come that are no messages: they cost most
_QUEUED_BYTES = 256 * 1024  # of `send`, before it blocks
_GOODBYE_S = 1.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r\n")
_REASON_HEADER = re.compile(
    rb"\r\nx-codex-rendezvous-rejection-reason:[ \t]*([\w-]{1,64})[ \t]*\r\n", re.IGNORECASE
)


class ConnectFailed(Exception):
    """There is no connection; the text says why and holds no part of the URL."""


class UpgradeRefused(ConnectFailed):
    """The server answered the upgrade with another status than 101."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the rendezvous answered {status}{f' ({reason})' if reason else ''}")
        self.status = status


class ConnectionEnded(Exception):
    """Nothing can be sent any more; the text says why."""


class Timing(NamedTuple):
    """The durations of one connection, in seconds."""

    connect_s: float = 30.0
    ping_interval_s: float = 30.0
    pong_timeout_s: float = 60.0


class Kind(NamedTuple):
    """What the messages of a connection are like: bytes of one that arrives, and how those that leave look.

    Where text is sent, text is taken too.
    """

    max_bytes: int
    is_text: bool


RELAY = Kind(MAX_BYTES, is_text=False)


class RendezvousSocket:
    """One connected websocket; owns its socket, which `close` closes.

    `writer` takes frames of many streams in turn; `send` is for those that have a single one.
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
        """`early` came behind the answer to the upgrade; `is_secure` tells of TLS around the socket."""
        self._sock = sock
        self._is_secure = is_secure
        self._kind = kind
        self._protocol = protocol
        self._timing = timing
        self._messages: deque[bytes] = deque()
        self._partial: bytearray | None = None
        self._frames = ClientFrames(
            TEXT_MESSAGE if kind.is_text else BINARY_MESSAGE,
            kind.max_bytes,
            self._messages.append,
            self._feed_library,
        )
        self._pong = Event()
        self._queue = _Queue()
        self._closed = False
        self._writing = False  # in a system call of one greenlet; no other may enter it
        self._turn = 0
        self._is_odd = False  # the last read brought what is no message in one frame
        self.ended_because = ""
        self.writer = FairWriter(text_frames if kind.is_text else binary_frame, self._write)
        self._helpers = [gevent.spawn(self._run_writer), gevent.spawn(self._keep_alive)]
        self._frames.take(early)

    @classmethod
    def connect(
        cls,
        url: str,
        environ: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        dialling: Dialling | None = None,
        kind: Kind = RELAY,
    ) -> RendezvousSocket:
        """Connect and upgrade; raise ConnectFailed or UpgradeRefused.

        Proxies and trusted certificates are those of `environ` (default: this process's own).
        """
        timing = timing or Timing()
        uri = _parse(url)
        sock: socket.socket | None = None
        found: RendezvousSocket | None = None
        try:
            with at_most(timing.connect_s):
                dialling = dialling or Dialling(os.environ if environ is None else environ)
                sock = dialling.connect(uri)
                protocol, early = _upgrade(sock, uri, kind.max_bytes)
                found = cls(sock, protocol, timing, kind, early, uri.secure)
            if found is None:
                raise ConnectFailed(f"no answer within {timing.connect_s:g} s")
        except (OSError, DiallingFailed) as error:
            raise ConnectFailed(_os_text(error)) from None
        finally:
            if found is None and sock is not None:
                sock.close()
        return found

    def send(self, message: bytes) -> None:
        """Queue one message; block while too much is queued.  Raises ConnectionEnded."""
        while not self._closed and self._queue.size > _QUEUED_BYTES:
            self._queue.room.clear()
            self._queue.room.wait()
        if self._closed:
            raise ConnectionEnded(self.ended_because or "the connection was closed")
        self._queue.add(message)
        self.writer.ready(self._queue)

    def receive(self) -> bytes | None:
        """Return the next message, None once the connection is over (see `ended_because`)."""
        while not self._messages:
            if self._closed:
                return None
            space = self._frames.space
            if self._is_odd:
                gevent.sleep(0)  # else pings without pause would keep everybody from their turn
                space = space[:_ODD_BYTES]
            try:
                count = self._sock.recv_into(space)
            except OSError as error:
                self._end(f"the connection broke: {_os_text(error)}")
                continue
            self._is_odd = False
            if count:
                self._frames.arrived(count)
            else:
                self._end("the rendezvous closed the connection")
        self._turn += 1
        if self._turn % _TURN_MESSAGES == 0:
            gevent.sleep(0)  # a peer that sends without pause must not keep the others from their turn
        return self._messages.popleft()

    def close(self) -> None:
        """Say goodbye if the peer takes it at once, and let go of the connection.  May be called again."""
        if self._closed:
            return
        with at_most(_GOODBYE_S):
            try:
                if self._protocol.state is OPEN and not self._writing:
                    self._writing = True  # for good: nothing goes out behind a Close frame
                    self._protocol.send_close(1000)
                    self._sock.sendall(b"".join(self._protocol.data_to_send()))
            except (OSError, WebSocketException):
                pass  # it is gone already
        self._end("closed by this end")

    def _feed_library(self, data: bytes) -> bool:
        """Let the library judge what is no message in one frame; tell whether it goes on."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            self._is_odd = True
            if isinstance(event, Frame):
                self._take_frame(event)
        for data in self._protocol.data_to_send():
            if data:
                self.writer.control(data)
        if self._protocol.parser_exc is not None:
            self._end(f"the rendezvous broke the rules of WebSocket: {self._protocol.parser_exc}")
        elif self._protocol.state is not OPEN:
            code = self._protocol.close_rcvd
            self._end("the rendezvous closed the connection" + (f" ({code.code})" if code else ""))
        return not self._closed

    def _take_frame(self, frame: Frame) -> None:
        """Keep messages; text belongs to nobody on a relay and is left out there."""
        if frame.opcode is Opcode.PONG:
            self._pong.set()
        elif frame.opcode is Opcode.BINARY or (frame.opcode is Opcode.TEXT and self._kind.is_text):
            if frame.fin:
                self._messages.append(bytes(frame.data))
            else:
                self._partial = bytearray(frame.data)
        elif frame.opcode is Opcode.TEXT:
            self._partial = None
        elif frame.opcode is Opcode.CONT and self._partial is not None:
            self._partial += frame.data
            if frame.fin:
                self._messages.append(bytes(self._partial))
                self._partial = None

    def _write(self, buffers: list[bytes]) -> None:
        if self._writing:
            raise ConnectionAbortedError("the connection is being closed")
        self._writing = True
        if len(buffers) == 1:
            self._sock.sendall(buffers[0])
        elif self._is_secure:
            self._sock.sendall(b"".join(buffers))  # TLS takes one buffer at a time
        else:
            self._write_all(buffers)
        self._writing = False

    def _write_all(self, buffers: list[bytes]) -> None:
        """Write without joining, as far as the kernel takes it at once."""
        sent = self._sock.sendmsg(buffers)
        if sent < sum(map(len, buffers)):
            self._sock.sendall(memoryview(b"".join(buffers))[sent:])

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
        gevent.killall([each for each in self._helpers if each is not me], block=False)
        self._helpers.clear()
        self._queue.room.set()
        self._sock.close()
        self._frames.let_go()
        let_go(self._protocol)


class _Queue:
    """The messages of `send`: a source of the writer with an order of its own."""

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


def shown(url: str) -> str:
    """Return what may be told of a URL: where it leads, not what its query lets one do."""
    scheme, _, rest = url.strip().partition("://")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{place}" if place else "the address the registry gave"


def _parse(url: str) -> WebSocketURI:
    # Escaped here, since the library would escape the percent signs of such a URL once more.
    ascii_url = "".join(each if each.isascii() else quote(each) for each in url.strip())
    try:
        return parse_uri(ascii_url)
    except (InvalidURI, ValueError):
        raise ConnectFailed("the address from the registry is no ws:// or wss:// URL") from None


def _upgrade(sock: socket.socket, uri: WebSocketURI, max_bytes: int) -> tuple[ClientProtocol, bytes]:
    """Return the library's side of the connection, and what came behind the answer."""
    protocol = ClientProtocol(uri, max_size=(max_bytes, max_bytes))
    try:
        return protocol, _exchange_heads(sock, protocol)
    except BaseException:
        let_go(protocol)
        raise


def _exchange_heads(sock: socket.socket, protocol: ClientProtocol) -> bytes:
    """Ask for the upgrade and take the answer; return what came behind it."""
    protocol.send_request(protocol.connect())
    sock.sendall(b"".join(protocol.data_to_send()))
    received = b""
    while b"\r\n\r\n" not in received:
        data = sock.recv(_READ_BYTES)
        received += data
        if not data or len(received) > _MAX_HEAD_BYTES:
            raise ConnectFailed("the rendezvous did not answer the upgrade in HTTP")
    head, _, early = received.partition(b"\r\n\r\n")
    status_line = _STATUS_LINE.match(head + b"\r\n")
    if status_line is None:
        raise ConnectFailed("the rendezvous did not answer the upgrade in HTTP")
    if status_line[1] != b"101":
        told = _REASON_HEADER.search(head + b"\r\n")
        raise UpgradeRefused(int(status_line[1]), told[1].decode() if told else "")
    protocol.receive_data(head + b"\r\n\r\n")
    if protocol.handshake_exc is not None:
        raise ConnectFailed(f"the rendezvous answered the upgrade wrongly: {protocol.handshake_exc}")
    protocol.events_received()  # the answer itself
    return early


def _os_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return os_error_text(error.errno)
    return str(error)
