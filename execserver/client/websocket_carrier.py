"""The client's end of a WebSocket, `ws://` or `wss://`, over gevent sockets.

Handshake, frames, masking and control frames are the `websockets` library's; this module moves the bytes.
Nothing is compressed.  Messages above the fragment size go out as continuation frames; what comes in may be
cut anywhere, its size is bounded per frame and per message, and fragments are joined as they come, so their
number does not matter.

The reader never waits for a writer: an answer to a ping is sent by a greenlet of its own, and while one waits
for the socket only the newest is kept.
"""

from __future__ import annotations

import socket as _socket
from collections import deque
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.uri import WebSocketURI, parse_uri

from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    InvalidUrl,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.wire.ended_protocol import let_go

_READ_SIZE: Final = 128 * 1024
_ODD_READ_SIZE: Final = 8 * 1024  # while frames come that complete no message
_CLOSE_PATIENCE: Final = 1.0  # seconds for the Close frame to leave
# A peer that vanished is noticed after 20 s, soon enough to resume before its session expires.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 2))
_UNACKNOWLEDGED_MS: Final = 20_000


def parse_url(url: str) -> WebSocketURI:
    """Take a WebSocket URL apart.  Raises `InvalidUrl`."""
    try:
        uri = parse_uri(url.strip())
    except (InvalidURI, ValueError) as error:
        raise InvalidUrl(f"not a ws:// or wss:// URL: {url!r}") from error
    if ("role", "harness") in parse_qsl(urlsplit(url).query):
        raise InvalidUrl("a URL with role=harness belongs to a relay, which plain messages cannot use")
    return uri


class WebSocketCarrier:
    """One WebSocket connection; owns its socket, which `close` closes."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol, fragment_bytes: int) -> None:
        self._socket = sock
        self._protocol = protocol
        self._fragment_bytes = fragment_bytes
        self._messages: deque[bytes] = deque()
        self._partial: bytearray | None = None
        self._is_odd = False  # the last read brought frames
        self._ended = False
        self._closed = False
        self._sending = BoundedSemaphore(1)
        self._control: list[bytes] = []
        self._control_queued = False

    @classmethod
    def connect(cls, url: str, options: ExecServerClientConnectOptions, timeout: float) -> WebSocketCarrier:
        """Dial and upgrade within `timeout` seconds.

        Raises `InvalidUrl`, `ConnectFailed` or, when time is up, `ConnectTimeout`.
        """
        uri = parse_url(url)
        sock: socket.socket | None = None
        try:
            with gevent.Timeout(timeout, ConnectTimeout(f"{url} did not answer within {timeout:g} s")):
                sock = _dial(uri)
                if uri.secure:
                    sock = _secure(sock, uri.host, options)
                return _upgrade(cls, sock, uri, options)
        except OSError as error:
            _close(sock)
            if isinstance(error, ConnectTimeout):
                raise
            raise ConnectFailed(f"cannot connect to {url}: {error}") from error
        except BaseException:
            _close(sock)
            raise

    def exchange_heads(self, headers: Mapping[str, str]) -> None:
        """Ask for the upgrade and take the answer.  Raises `InvalidUrl` or `ConnectFailed`."""
        protocol = self._protocol
        request = protocol.connect()
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise InvalidUrl(f"the header {name} holds a line end")
            request.headers[name] = value
        protocol.send_request(request)
        self._write(protocol.data_to_send())
        while protocol.state is CONNECTING and protocol.handshake_exc is None:
            data = self._socket.recv(_READ_SIZE)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
        if protocol.handshake_exc is not None:
            raise ConnectFailed(_refusal(protocol.handshake_exc)) from protocol.handshake_exc
        self._take_events()

    def receive(self) -> bytes | None:
        """Return the next message, or None at the end of the connection (see `Carrier`)."""
        while not self._messages:
            if self._ended:
                self._raise_if_broken()
                return None
            if self._is_odd:
                gevent.sleep(0)  # else pings without pause would let no time run out, and nobody else run
            try:
                data = self._socket.recv(_ODD_READ_SIZE if self._is_odd else _READ_SIZE)
            except OSError as error:
                raise TransportClosed(f"the connection broke: {error}") from error
            if data:
                self._protocol.receive_data(data)
            else:
                self._ended = True
            self._take_events()
        return self._messages.popleft()

    def _raise_if_broken(self) -> None:
        """Tell a broken rule from an ordinary end, which is abrupt more often than not."""
        broken = self._protocol.parser_exc
        if broken is not None and not isinstance(broken, EOFError):
            raise ProtocolViolation(f"the server broke the rules of WebSocket: {broken}") from broken

    def _take_events(self) -> None:
        """Move what the protocol understood to the messages, and what it wants sent to the control queue."""
        events = self._protocol.events_received()
        self._is_odd = bool(events)
        for event in events:
            if isinstance(event, Frame):
                self._take_frame(event)
        for data in self._protocol.data_to_send():
            if data:
                self._send_control(data)
        if self._protocol.state is not OPEN:
            self._ended = True

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            if frame.fin:
                self._messages.append(bytes(frame.data))
            else:
                self._partial = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and self._partial is not None:
            self._partial += frame.data
            if frame.fin:
                self._messages.append(bytes(self._partial))
                self._partial = None

    def send(self, message: bytes) -> None:
        """Send one message, in fragments when it is large.  Raises `TransportClosed`."""
        size = self._fragment_bytes
        with self._sending:
            for start in range(0, len(message) or 1, size):
                self._send_frame(message[start : start + size], start == 0, start + size >= len(message))

    def _send_frame(self, payload: bytes, first: bool, final: bool) -> None:
        try:
            if first:
                self._protocol.send_text(payload, final)
            else:
                self._protocol.send_continuation(payload, final)
            self._write(self._protocol.data_to_send())
        except WebSocketException as error:
            raise TransportClosed(f"the connection is closing: {error}") from error

    def _write(self, pieces: list[bytes]) -> None:
        if self._closed:
            raise TransportClosed("the connection is closed")
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except OSError as error:
            raise TransportClosed(f"the connection broke: {error}") from error

    def _send_control(self, data: bytes) -> None:
        """Queue a pong or the echo of a Close without waiting for the socket."""
        self._control = [data]
        if not self._control_queued:
            self._control_queued = True
            gevent.spawn(self._flush_control)

    def _flush_control(self) -> None:
        with self._sending:
            self._control_queued = False
            pieces, self._control = self._control, []
            try:
                self._write(pieces)
            except TransportClosed:
                pass  # the reader finds out by itself

    def close(self) -> None:
        """Send a Close frame if the socket takes it at once, and close the socket."""
        if self._closed:
            return
        if self._protocol.state is OPEN and not self._ended and self._sending.acquire(blocking=False):
            self._say_goodbye()
            self._sending.release()
        self._closed = self._ended = True
        _close(self._socket)
        let_go(self._protocol)

    def _say_goodbye(self) -> None:
        try:
            self._socket.settimeout(_CLOSE_PATIENCE)
            self._protocol.send_close(1000)
            self._write(self._protocol.data_to_send())
        except (OSError, TransportClosed, WebSocketException):
            pass  # the peer is gone, or does not read: it will see the end of the connection


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


def _dial(uri: WebSocketURI) -> socket.socket:
    try:
        # An address needs no resolver thread.
        known = _socket.getaddrinfo(uri.host, uri.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        address = known[0][4][:2]
    except OSError:
        address = (uri.host, uri.port)
    sock = socket.create_connection((str(address[0]), int(address[1])))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return sock


def _secure(sock: socket.socket, host: str, options: ExecServerClientConnectOptions) -> socket.socket:
    from gevent import ssl  # costs 40 ms, and most connections are local

    context = options.ssl_context
    if context is None:
        # gevent has only the standard library's create_default_context, whose sockets block everything.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_default_certs()
    elif not _is_green(context):
        sock.close()
        raise TypeError("ssl_context must be a gevent.ssl.SSLContext: others block every greenlet")
    secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        secured.do_handshake()
    except BaseException:
        secured.close()
        raise
    return secured


def _is_green(context: object) -> bool:
    from gevent.ssl import SSLContext

    return isinstance(context, SSLContext)


def _upgrade(
    cls: type[WebSocketCarrier],
    sock: socket.socket,
    uri: WebSocketURI,
    options: ExecServerClientConnectOptions,
) -> WebSocketCarrier:
    protocol = ClientProtocol(uri, max_size=(options.max_message_bytes, options.max_frame_bytes))
    carrier = cls(sock, protocol, options.send_fragment_bytes)
    try:
        carrier.exchange_heads(options.headers)
    except BaseException:
        let_go(protocol)
        raise
    return carrier


def _refusal(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        body = bytes(error.response.body or b"")[:200].decode("utf-8", "replace").strip()
        return f"the server refused the connection with status {error.response.status_code} {body}".rstrip()
    return f"no WebSocket server there: {error}"
