"""The frames of a server as its peer reads them, independent of the code under test."""

from __future__ import annotations

import socket
from typing import NamedTuple

import gevent

from tests.support.waiting import wait_until


class ServerFrame(NamedTuple):
    """A frame that came from the server."""

    opcode: int
    payload: bytes
    fin: bool = True


class FrameReader:
    """Reads the frames of a server from a non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self.ended = False

    def frames(self) -> list[ServerFrame]:
        """Return the frames that have arrived."""
        self._receive()
        found = []
        while (frame := self._next()) is not None:
            found.append(frame)
        return found

    def wait_for(self, count: int) -> list[ServerFrame]:
        """Wait for at least as many frames and return them."""
        got: list[ServerFrame] = []

        def enough() -> bool:
            got.extend(self.frames())
            return len(got) >= count

        wait_until(enough, pause=gevent.sleep)
        return got

    def wait_for_end(self) -> list[ServerFrame]:
        """Wait for the end of the connection; return the frames that came before."""
        got: list[ServerFrame] = []

        def over() -> bool:
            got.extend(self.frames())
            return self.ended

        wait_until(over, pause=gevent.sleep)
        return got

    def _receive(self) -> None:
        while not self.ended:
            try:
                data = self._sock.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            self._data += data
            self.ended = not data

    def _next(self) -> ServerFrame | None:
        data = self._data
        if len(data) < 2:
            return None
        size, start = data[1], 2
        if size in (126, 127):
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        if len(data) < start + size:
            return None
        self._data = data[start + size :]
        return ServerFrame(data[0] & 0x0F, data[start : start + size], bool(data[0] & 0x80))
