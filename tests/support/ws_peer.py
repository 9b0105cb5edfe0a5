"""A small WebSocket client for tests: blocking, strict, with its own frame code.

It can send what a well-behaved client would not (raw bytes, wrong opcodes, fragments of any size) and records
what a library would hide: control frames, the number of frames a message came in, how the connection ended.
It refuses any frame of the server that RFC 6455 forbids. Owns its socket; `close` lets go of it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.support.feed import Feed, whole
from tests.support.peer import WAIT, Peer, PeerTimeout, ProtocolFault

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
ACCEPT_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
READ_SIZE = 262_144


class Frame(NamedTuple):
    """One frame as it was on the wire."""

    opcode: int
    payload: bytes
    final: bool


class Ending(Enum):
    """How the server's side of the connection ended."""

    OPEN = "open"
    CLOSE_FRAME = "close frame, then end of stream"
    END_OF_STREAM = "end of stream without a close frame"
    RESET = "reset"


def mask_bytes(data: bytes, key: bytes) -> bytes:
    """Apply a four byte mask to any number of bytes."""
    if not data:
        return b""
    pad = (key * (len(data) // 4 + 1))[: len(data)]
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")
    return mixed.to_bytes(len(data), "big")


def client_frame(opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0) -> bytes:
    """Return one masked frame."""
    first = (0x80 if final else 0) | reserved << 4 | opcode
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    key = os.urandom(4)
    return head + key + mask_bytes(payload, key)


class WsPeer(Peer):
    """One WebSocket connection."""

    def __init__(self, sock: socket.socket, feed: Feed = whole) -> None:
        super().__init__()
        self.socket = sock
        self.feed = feed
        self.control: list[Frame] = []
        self.frames_of_last_message = 0
        self.ending = Ending.OPEN
        self.answers_pings = True
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._parts_opcode = 0

    @classmethod
    def connect(cls, url: str, feed: Feed = whole, headers: Iterable[str] = ()) -> WsPeer:
        """Connect and upgrade. Raises `ProtocolFault` when the answer is anything but a plain upgrade."""
        parts = urlsplit(url)
        if parts.scheme == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(parts.path)
            parts = urlsplit("ws://localhost")
        else:
            assert parts.scheme == "ws"
            assert parts.hostname is not None
            sock = socket.create_connection((parts.hostname, parts.port or 80), WAIT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = cls(sock, feed)
        try:
            peer._upgrade(parts.netloc, parts.path or "/", headers)
        except BaseException:
            sock.close()
            raise
        return peer

    def _upgrade(self, host: str, path: str, headers: Iterable[str]) -> None:
        key = base64.b64encode(os.urandom(16))
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key.decode()}", *headers]
        self.send_raw("\r\n".join([*lines, "", ""]).encode())
        head = self._read_head()
        status, *fields = head.decode("latin-1").split("\r\n")
        values = {
            name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)
        }
        accept = base64.b64encode(hashlib.sha1(key + ACCEPT_SALT).digest()).decode()
        if not status.startswith("HTTP/1.1 101") or values.get("sec-websocket-accept") != accept:
            raise ProtocolFault(f"no upgrade: {head!r}")
        if "sec-websocket-extensions" in values or "sec-websocket-protocol" in values:
            raise ProtocolFault(f"the server chose an extension or subprotocol: {head!r}")

    def _read_head(self) -> bytes:
        deadline = time.monotonic() + WAIT
        while b"\r\n\r\n" not in self._buffer:
            if not self._fill(deadline):
                raise ProtocolFault(f"the connection ended during the upgrade: {bytes(self._buffer)!r}")
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer[:] = rest
        return head

    @property
    def address(self) -> str:
        """This end's `ip:port`, as the server sees its peer."""
        name = self.socket.getsockname()
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are, cut by this peer's feed."""
        self.socket.settimeout(WAIT)
        for piece in self.feed(data):
            self.socket.sendall(piece)

    def send_frame(self, opcode: int, payload: bytes = b"", *, final: bool = True, reserved: int = 0) -> None:
        """Send one frame, which need not be a legal one."""
        self.send_raw(client_frame(opcode, payload, final=final, reserved=reserved))

    def send_text(self, text: str | bytes) -> None:
        """Send a text message in one frame."""
        self.send_frame(TEXT, text.encode() if isinstance(text, str) else text)

    def send_binary(self, data: bytes) -> None:
        """Send a binary message in one frame."""
        self.send_frame(BINARY, data)

    def send_fragments(self, pieces: Iterable[bytes], opcode: int = TEXT) -> None:
        """Send one message in several frames."""
        sizes = list(pieces)
        for index, piece in enumerate(sizes):
            self.send_frame(opcode if index == 0 else CONTINUATION, piece, final=index == len(sizes) - 1)

    def receive_text(self, timeout: float = WAIT) -> bytes | None:
        """Return the next text message, its frames joined; None when the connection has ended.

        Control frames on the way are recorded in `control`, pings answered. Raises `PeerTimeout`,
        `ProtocolFault`.
        """
        deadline = time.monotonic() + timeout
        while True:
            frame = self._next_frame(deadline)
            if frame is None:
                return None
            if frame.opcode >= CLOSE:
                self._take_control(frame)
                continue
            message = self._take_data(frame)
            if message is not None:
                return message

    def _take_control(self, frame: Frame) -> None:
        if not frame.final or len(frame.payload) > 125:
            raise ProtocolFault(f"control frame fragmented or too long: {frame}")
        self.control.append(frame)
        if frame.opcode == PING and self.answers_pings:
            self.send_frame(PONG, frame.payload)

    def _take_data(self, frame: Frame) -> bytes | None:
        if (frame.opcode == CONTINUATION) != bool(self._parts_opcode):
            raise ProtocolFault(f"opcode {frame.opcode} while in message of opcode {self._parts_opcode}")
        if frame.opcode == BINARY:
            raise ProtocolFault("the server sends text messages only")
        self._parts_opcode = self._parts_opcode or frame.opcode
        self._parts.append(frame.payload)
        if not frame.final:
            return None
        message = b"".join(self._parts)
        self.frames_of_last_message = len(self._parts)
        self._parts = []
        self._parts_opcode = 0
        message.decode()
        return message

    def _next_frame(self, deadline: float) -> Frame | None:
        while True:
            frame = self._parse()
            if frame is not None:
                return frame
            if not self._fill(deadline):
                return None

    def _parse(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        if buffer[0] & 0x70 or buffer[1] & 0x80:
            raise ProtocolFault(f"reserved bits or a mask in a server frame: {bytes(buffer[:2])!r}")
        size, start = buffer[1], 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if len(buffer) < start + size:
            return None
        frame = Frame(buffer[0] & 0x0F, bytes(buffer[start : start + size]), bool(buffer[0] & 0x80))
        if frame.opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise ProtocolFault(f"unknown opcode in {frame}")
        del buffer[: start + size]
        return frame

    def _fill(self, deadline: float) -> bool:
        """Read more bytes; False at the end of the stream."""
        if self.ending is not Ending.OPEN:
            return False
        self.socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self.socket.recv(READ_SIZE)
        except TimeoutError:
            raise PeerTimeout("no message in time") from None
        except ConnectionResetError:
            self.ending = Ending.RESET
            return False
        self._buffer += data
        if not data:
            closed = any(frame.opcode == CLOSE for frame in self.control)
            self.ending = Ending.CLOSE_FRAME if closed else Ending.END_OF_STREAM
        return bool(data)

    def wait_for_end(self, timeout: float = WAIT) -> Ending:
        """Read until the connection has ended; messages on the way are kept."""
        deadline = time.monotonic() + timeout
        while (message := self._read(max(0.0, deadline - time.monotonic()))) is not None:
            self.kept.append(message)
        return self.ending

    @property
    def close_code(self) -> int | None:
        """The code of the server's Close frame; None when there was none, or it had no code."""
        for frame in self.control:
            if frame.opcode == CLOSE and len(frame.payload) >= 2:
                return int.from_bytes(frame.payload[:2], "big")
        return None

    def abort(self) -> None:
        """Drop the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Drop the connection as the real client does: end of stream, no Close frame."""
        self.socket.close()
