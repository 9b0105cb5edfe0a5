"""The client's end of a WebSocket, `ws://`, `wss://` or `unix://`, over gevent sockets.

Upgrade and frames in their usual forms are handled by `wire`; whatever else comes goes to the `websockets`
library, which is loaded then.  This module moves the bytes.  Nothing is compressed.  Messages above the
fragment size are sent as continuation frames.  Received ones may be cut anywhere; their size is bounded per
frame and per message, and fragments are joined as they come, so that their number does not matter.

On a socket without TLS the event loop itself reads, and short messages go on from there: a key's echo would
wait for two greenlets otherwise.  The reader is woken for what is not taken so.

The reader never waits for a writer: a greenlet of its own sends the answer to a ping, and while one waits for
the socket only the newest answer is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent import socket
from gevent.event import Event
from gevent.hub import get_hub

from execserver.client.carriers.credentials import headers_for
from execserver.client.carriers.sockets import open_socket, secure
from execserver.client.carriers.upgrade import Upgrade
from execserver.client.carriers.urls import Address, parse_url
from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.eventloop.locks import BoundedSemaphore
from execserver.wire.client_frames import (
    SHORT_BYTES,
    TEXT_MESSAGE,
    ClientFrames,
    close_frame,
    message_frames,
    short_frame,
)

if TYPE_CHECKING:
    from execserver.wire.client_end import ClientEnd

_HEAD_READ_BYTES: Final = 16 * 1024
_ODD_READ_SIZE: Final = 8 * 1024  # while frames come that complete no message
_CLOSE_PATIENCE: Final = 1.0  # seconds until the Close frame is written
_READABLE: Final = 1


class WebSocketTransport:
    """One WebSocket connection after its upgrade; owns its socket, which `close` closes."""

    carries_binary = True

    def __init__(
        self, sock: socket.socket, options: ExecServerClientConnectOptions, early: bytes = b""
    ) -> None:
        """Take a socket; `early` came with the answer to the upgrade."""
        self._socket = sock
        self._options = options
        self._messages: deque[bytes] = deque()
        self._library: ClientEnd | None = None  # from the first frame on that is not a whole message
        self._is_odd = False  # the last read brought such frames
        self._ended = False
        self._closed = False
        self._sending = BoundedSemaphore(1)
        self._control: list[bytes] = []
        self._control_queued = False
        self._unwaited: Any = None  # with `_take`: the socket whose calls never wait
        self._take: Callable[[bytes], bool] | None = None
        self._watcher: Any = None  # with `_take`: of the socket, started while `receive` waits
        self._broken: OSError | None = None  # what the watcher's read met
        self._for_reader = Event()
        self._short_bytes = min(SHORT_BYTES, options.send_fragment_bytes)
        most = min(options.max_message_bytes, options.max_frame_bytes)
        self._frames = ClientFrames(TEXT_MESSAGE, most, self._messages.append, self._feed_library)
        self._frames.take(early)

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
                if address.secure:
                    sock = secure(sock, address.host, options)
                return cls(sock, options, _upgrade(sock, address, options))
        except OSError as error:
            _close(sock)
            if isinstance(error, ConnectTimeout):
                raise
            raise ConnectFailed(f"cannot connect to {url}: {error}") from error
        except BaseException:
            _close(sock)
            raise

    def receive(self) -> bytes | None:
        """Return the next message, or None at the end of the connection (see `Transport`)."""
        while not self._messages:
            if self._ended:
                self._raise_if_broken()
                return None
            space = self._frames.space
            if self._is_odd:
                gevent.sleep(0)  # pings without pause must not hold up timeouts and other greenlets
                space = space[:_ODD_READ_SIZE]
            if self._watcher is not None and not self._is_odd:
                self._wait_for_others()
                continue
            try:
                count = self._socket.recv_into(space)
            except OSError as error:
                raise TransportClosed(f"the connection broke: {error}") from error
            self._arrived(count)
        return self._messages.popleft()

    def _arrived(self, count: int) -> None:
        self._is_odd = False
        if count:
            self._frames.arrived(count)
        else:
            self._ended = True

    def take_at_once(self, take: Callable[[bytes], bool]) -> None:
        """Have messages taken in the event loop (see `Transport`); not over TLS."""
        if type(self._socket) is socket.socket and not self._closed:
            self._take = take
            # gevent's own; a file object apart would cost a descriptor.
            self._unwaited = self._socket._sock  # type: ignore[attr-defined]
            self._watcher = get_hub().loop.io(self._socket.fileno(), _READABLE)

    def _wait_for_others(self) -> None:
        """Wait for a message that is not taken at once, for odd frames, or the end."""
        self._for_reader.clear()
        self._watcher.start(self._read_at_once)
        try:
            self._for_reader.wait()
        finally:
            if self._watcher is not None:
                self._watcher.stop()
        broken, self._broken = self._broken, None
        if broken is not None:
            raise TransportClosed(f"the connection broke: {broken}") from broken

    def _read_at_once(self) -> None:
        """Read what has come, in the event loop."""
        take, frames = self._take, self._frames
        try:
            count = self._unwaited.recv_into(frames.space)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = error.with_traceback(None)
        else:
            lone = frames.lone(count)
            if lone is not None and take is not None and take(lone):
                return  # as nearly always
            self._arrived(count)
        messages = self._messages
        while messages and take is not None and take(messages[0]):
            messages.popleft()
        if messages or self._ended or self._is_odd or self._broken is not None:
            self._watcher.stop()
            self._for_reader.set()

    def _raise_if_broken(self) -> None:
        """Raise `ProtocolViolation` if the server broke a rule; a mere abrupt end is common and no error."""
        broken = None if self._library is None else self._library.broken_rule
        if broken is not None:
            raise ProtocolViolation(f"the server broke the rules of WebSocket: {broken}") from broken

    def _feed_library(self, data: bytes) -> bool:
        """Take bytes of a frame that is no whole text message; return False after the end."""
        if self._ended:
            return False
        if self._library is None:
            from execserver.wire.client_end import TEXT_TOO, ClientEnd  # late: most commands end without

            limits = self._options.max_message_bytes, self._options.max_frame_bytes
            self._library = ClientEnd.upgraded(*limits, TEXT_TOO, self._messages.append)
        for answer in self._library.feed(data):
            self._send_control(answer)
        self._is_odd = self._is_odd or self._library.saw_frames
        self._ended = not self._library.is_open
        return not self._ended

    def send(self, message: bytes) -> None:
        """Send one message, in fragments when it is large.  Raises `TransportClosed`."""
        with self._sending:
            if self._library is not None and not self._library.is_open:
                raise TransportClosed("the connection is closing")
            self._write(message_frames(message, self._options.send_fragment_bytes))

    def _write(self, pieces: list[bytes]) -> None:
        if self._closed:
            raise TransportClosed("the connection is closed")
        try:
            for piece in pieces:
                sent = self._socket.send(piece)  # nearly always all; `sendall` asks the kernel first
                if sent < len(piece):
                    self._socket.sendall(memoryview(piece)[sent:])
        except OSError as error:
            raise TransportClosed(f"the connection broke: {error}") from error

    def send_at_once(self, message: bytes) -> bool:
        """Send a short message without waiting (see `Transport`)."""
        is_open = self._watcher is not None and (self._library is None or self._library.is_open)
        if not is_open or self._sending.locked():
            return False
        if len(message) <= self._short_bytes:
            frame = short_frame(message)
        else:
            frame = b"".join(message_frames(message, self._options.send_fragment_bytes))
        try:
            sent = self._unwaited.send(frame)
        except OSError:
            return False  # it is full, or broken, which `send` tells
        if sent < len(frame):
            self._sending.acquire(False)  # nobody has it
            gevent.spawn(self._send_rest, memoryview(frame)[sent:])
        return True

    def _send_rest(self, rest: memoryview) -> None:
        """Send what the socket did not take at once; nobody else sends meanwhile."""
        try:
            self._socket.sendall(rest)
        except OSError:
            pass  # the reader notices it by itself
        finally:
            self._sending.release()

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
        if not self._ended and self._sending.acquire(blocking=False):
            self._send_shutdown_notice()
            self._sending.release()
        self._closed = self._ended = True
        watcher, self._watcher, self._take = self._watcher, None, None
        if watcher is not None:
            watcher.close()
            self._for_reader.set()
        _close(self._socket)
        self._frames.let_go()
        if self._library is not None:
            self._library.let_go()

    def _send_shutdown_notice(self) -> None:
        try:
            self._socket.settimeout(_CLOSE_PATIENCE)
            self._write([close_frame()])
        except (OSError, TransportClosed):
            pass  # the peer is gone or does not read; it will see the end of the connection


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


def _upgrade(sock: socket.socket, address: Address, options: ExecServerClientConnectOptions) -> bytes:
    """Upgrade a connection; return what came behind the answer.  Raises `InvalidUrl` or `ConnectFailed`."""
    upgrade = Upgrade(address, headers_for(address, options))
    try:
        sock.sendall(upgrade.request)
        while (early := upgrade.feed(sock.recv(_HEAD_READ_BYTES))) is None:
            pass
    finally:
        upgrade.let_go()
    return early
