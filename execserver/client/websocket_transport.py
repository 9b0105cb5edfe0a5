"""The client's end of a WebSocket, `ws://`, `wss://` or `unix://`, over gevent sockets.

The `websockets` library does the handshake, frames, masking and control frames; this module moves the bytes.
Nothing is compressed.  Messages above the fragment size are sent as continuation frames.  Received ones may
be cut anywhere; their size is bounded per frame and per message, and fragments are joined as they come, so
that their number does not matter.

The reader never waits for a writer: a greenlet of its own sends the answer to a ping, and while one waits for
the socket only the newest answer is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.protocol import CONNECTING

from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    InvalidUrl,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.sockets import Address, headers_for, open_socket, parse_url, secure
from execserver.wire.client_end import TEXT_TOO, ClientEnd
from execserver.wire.ended_protocol import let_go

_READ_SIZE: Final = 128 * 1024
_ODD_READ_SIZE: Final = 8 * 1024  # while frames come that complete no message
_CLOSE_PATIENCE: Final = 1.0  # seconds until the Close frame is written


class WebSocketTransport:
    """One WebSocket connection; owns its socket, which `close` closes."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol, fragment_bytes: int) -> None:
        self._socket = sock
        self._protocol = protocol
        self._fragment_bytes = fragment_bytes
        self._messages: deque[bytes] = deque()
        self._library = ClientEnd(protocol, TEXT_TOO, self._messages.append)
        self._ended = False
        self._closed = False
        self._sending = BoundedSemaphore(1)
        self._control: list[bytes] = []
        self._control_queued = False

    @classmethod
    def connect(cls, url: str, options: ExecServerClientConnectOptions, timeout: float) -> WebSocketTransport:
        """Connect and upgrade within `timeout` seconds.

        Raises `InvalidUrl`, `ConnectFailed` or, when time is up, `ConnectTimeout`.
        """
        address = parse_url(url)
        sock: socket.socket | None = None
        try:
            with gevent.Timeout(timeout, ConnectTimeout(f"{url} did not answer within {timeout:g} s")):
                sock = open_socket(address)
                if address.uri.secure:
                    sock = secure(sock, address.uri.host, options)
                return _upgrade(cls, sock, address, options)
        except OSError as error:
            _close(sock)
            if isinstance(error, ConnectTimeout):
                raise
            raise ConnectFailed(f"cannot connect to {url}: {error}") from error
        except BaseException:
            _close(sock)
            raise

    def exchange_heads(self, headers: Mapping[str, str]) -> None:
        """Send the upgrade request and read the answer.  Raises `InvalidUrl` or `ConnectFailed`."""
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
        self._answer(self._library.collect())

    def receive(self) -> bytes | None:
        """Return the next message, or None at the end of the connection (see `Transport`)."""
        while not self._messages:
            if self._ended:
                self._raise_if_broken()
                return None
            is_odd = self._library.saw_frames
            if is_odd:
                gevent.sleep(0)  # pings without pause must not hold up timeouts and other greenlets
            try:
                data = self._socket.recv(_ODD_READ_SIZE if is_odd else _READ_SIZE)
            except OSError as error:
                raise TransportClosed(f"the connection broke: {error}") from error
            if data:
                self._answer(self._library.feed(data))
            else:
                self._ended = True
        return self._messages.popleft()

    def _raise_if_broken(self) -> None:
        """Raise `ProtocolViolation` if the server broke a rule; a mere abrupt end is common and no error."""
        broken = self._library.broken_rule
        if broken is not None:
            raise ProtocolViolation(f"the server broke the rules of WebSocket: {broken}") from broken

    def _answer(self, control: list[bytes]) -> None:
        """Send what the library wants to send, and note the end of the connection."""
        for data in control:
            self._send_control(data)
        if not self._library.is_open:
            self._ended = True

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
        # RFC 6455 lets an end answer only the newest of several pings.
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
                pass  # the reader notices it by itself

    def close(self) -> None:
        """Send a Close frame if the socket takes it at once, and close the socket."""
        if self._closed:
            return
        if self._library.is_open and not self._ended and self._sending.acquire(blocking=False):
            self._send_shutdown_notice()
            self._sending.release()
        self._closed = self._ended = True
        _close(self._socket)
        self._library.let_go()

    def _send_shutdown_notice(self) -> None:
        try:
            self._socket.settimeout(_CLOSE_PATIENCE)
            self._write([self._library.goodbye()])
        except (OSError, TransportClosed, WebSocketException):
            pass  # the peer is gone or does not read; it will see the end of the connection


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


def _upgrade(
    cls: type[WebSocketTransport],
    sock: socket.socket,
    address: Address,
    options: ExecServerClientConnectOptions,
) -> WebSocketTransport:
    headers = headers_for(address, options)
    protocol = ClientProtocol(address.uri, max_size=(options.max_message_bytes, options.max_frame_bytes))
    transport = cls(sock, protocol, options.send_fragment_bytes)
    try:
        transport.exchange_heads(headers)
    except BaseException:
        let_go(protocol)
        raise
    return transport


def _refusal(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        body = bytes(error.response.body or b"")[:200].decode("utf-8", "replace").strip()
        return f"the server refused the connection with status {error.response.status_code} {body}".rstrip()
    return f"no WebSocket server there: {error}"
