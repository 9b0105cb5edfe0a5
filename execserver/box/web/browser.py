"""One WebSocket of a browser: its calls, the answers and events for it, and its terminals.

A browser that does not read holds up itself only.  Its terminals fall behind what is kept of their output,
which is told as a gap; above 1 MiB of waiting answers no call of it is begun, and above 16 MiB it is closed.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent import socket
from gevent.event import Event
from gevent.pool import Pool

from execserver.box.web.failing import BUSY, CallFailed
from execserver.box.web.reading import Broken, parsed
from execserver.box.web.terminals import Channel
from execserver.wire.close_codes import GOING_AWAY, INVALID_DATA, POLICY_VIOLATION
from execserver.wire.websocket import FrameLimits, ServerFrames, frame_header

_log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
MESSAGE_BYTES: Final = 8 * MIB
_LIMITS: Final = FrameLimits(MESSAGE_BYTES, MESSAGE_BYTES, 256)
_CALLS_AT_ONCE: Final = 64
_WAITING_BYTES: Final = MIB
_MOST_WAITING_BYTES: Final = 16 * MIB
_EVENT_BYTES: Final = MIB  # above it events that will come again are left out
_TERMINAL_PIECE: Final = 32 * 1024
_SOCKET_BYTES: Final = 256 * 1024  # else the kernel takes several MiB for who does not read
_CLOSE_S: Final = 2.0
_BINARY: Final = 0x02 ^ 0x01  # from the first byte of a text frame to that of a binary one

Carry = Callable[["Browser", str, dict[str, Any]], object]


class Browser:
    """Owns the socket from `run` on, and the channels of this browser by number."""

    def __init__(self, sock: socket.socket, carry: Carry) -> None:
        """`carry` carries out a call.  It raises CallFailed."""
        self._sock = sock
        self._carry = carry
        self._frames = ServerFrames(_LIMITS)
        self._calls = Pool(_CALLS_AT_ONCE)
        self._texts: deque[bytes] = deque()
        self._waiting = 0  # bytes of `_texts`
        self._wake = Event()
        self._room = Event()
        self._closing = False
        self.channels: dict[int, Channel] = {}

    def run(self, answer: bytes, early: bytes) -> None:
        """Send the answer to the upgrade, and serve until either side ends it."""
        self._texts.append(answer)
        self._wake.set()
        writer = gevent.spawn(self._write)
        try:
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            self._read(early)
        except OSError as error:
            _log.debug("a browser is gone: %s", error)
        finally:
            self._calls.kill()
            self._closing = True
            self._wake.set()
            writer.join(_CLOSE_S)
            writer.kill()
            self._frames.let_go()
            self._sock.close()

    def end(self) -> None:
        """Say goodbye; `run` then ends."""
        self._frames.close(GOING_AWAY, "the console has ended")
        self._send_control()
        self._closing = True
        self._wake.set()
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # it has left already

    def tell(self, event: str, *, again: bool = False, **members: object) -> None:
        """Send an event; one that comes `again` is left out for a browser that does not read."""
        if not (again and self._waiting > _EVENT_BYTES):
            self._queue({"event": event, **members})

    def wake(self) -> None:
        """Note that a channel has news."""
        self._wake.set()

    def _read(self, early: bytes) -> None:
        data = early
        while True:
            for message in self._frames.feed(data) if data else ():
                self._take(message)
            if self._frames.control:
                self._send_control()
            if self._frames.finished:
                return
            data = self._sock.recv(64 * 1024)
            if not data:
                return

    def _send_control(self) -> None:
        for frame in self._frames.control:
            self._put(frame)
        self._frames.control = []

    def _take(self, message: bytes) -> None:
        # Channel numbers stay below 2**24, and no JSON text begins with a NUL.
        if message[:1] == b"\0" and len(message) >= 4:
            channel = self.channels.get(struct.unpack_from(">I", message)[0])
            if channel is not None:
                channel.put(message[4:])
            return
        try:
            call_id, method, params = parsed(message)
        except Broken as broken:
            self._frames.close(INVALID_DATA, str(broken))
            return
        while self._waiting > _WAITING_BYTES and not self._closing:
            self._room.clear()
            self._room.wait()
        self._calls.spawn(self._call, call_id, method, params)

    def _call(self, call_id: int, method: str, params: dict[str, Any]) -> None:
        # For an error that nobody expects: it is printed, and the page does not wait for ever.
        answer: dict[str, object] = {"error": CallFailed("this is a mistake of the console").members()}
        try:
            answer = {"result": self._carry(self, method, params)}
        except CallFailed as failed:
            answer = {"error": failed.members()}
        finally:
            self._queue({"id": call_id, **answer})

    def _queue(self, message: dict[str, object]) -> None:
        text = json.dumps(message, separators=(",", ":")).encode("ascii")
        if len(text) > MESSAGE_BYTES:
            failed = CallFailed("the answer is too large", BUSY)
            text = json.dumps({"id": message.get("id"), "error": failed.members()}).encode()
        self._put(frame_header(len(text)) + text)

    def _put(self, data: bytes) -> None:
        if self._closing:
            return
        self._texts.append(data)
        self._waiting += len(data)
        if self._waiting > _MOST_WAITING_BYTES:
            self._frames.close(POLICY_VIOLATION, "it does not read")
            self._closing = True
            self._sock.close()
        self._wake.set()

    def _write(self) -> None:
        try:
            while not self._closing or self._texts:
                self._wake.clear()
                if not self._write_text() and not self._write_output() and not self._closing:
                    self._wake.wait()
        except OSError:
            self._closing = True
            self._room.set()

    def _write_text(self) -> bool:
        if not self._texts:
            return False
        data = self._texts.popleft()
        self._sock.sendall(data)
        self._waiting = max(0, self._waiting - len(data))
        self._room.set()
        return True

    def _write_output(self) -> bool:
        """Send a piece of each terminal that has news; return whether there was one."""
        wrote = False
        for number, channel in list(self.channels.items()):
            if not channel.has_news:
                continue
            wrote = True
            lost, data = channel.take(_TERMINAL_PIECE)
            if lost != 0:
                self.tell("terminal.gap", channel=number, lost_bytes=lost)
                while self._write_text():
                    pass
            if data:
                header = bytearray(frame_header(len(data) + 4))
                header[0] ^= _BINARY
                self._sock.sendall(bytes(header) + number.to_bytes(4, "big") + data)
            if channel.is_over:
                del self.channels[number]
                channel.close()
                self.tell("terminal.exited", channel=number, exit_code=channel.exit_code)
        return wrote
