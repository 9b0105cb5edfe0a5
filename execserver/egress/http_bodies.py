"""The chunks of an HTTP/1 body: strictly read; whoever passes them on writes its own.

A machine that is fed with bytes and gives out data.  Extensions of chunks and trailers are read and dropped.
"""

from __future__ import annotations

import enum
import re

from execserver.egress.http_heads import BadHead

MAX_LINE_BYTES = 4096  # of a chunk's size with its extensions, and of all trailers together
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e]*)?")
LAST_CHUNK = b"0\r\n\r\n"


class _At(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    TRAILERS = enum.auto()
    END = enum.auto()


class Chunks:
    """Reads a chunked body.  `rest` is what came behind its end."""

    __slots__ = ("_at", "_left", "_trailer_bytes", "rest")

    def __init__(self) -> None:
        self._at = _At.SIZE
        self._left = 0
        self._trailer_bytes = 0
        self.rest = b""

    @property
    def ended(self) -> bool:
        """True once the whole body was read."""
        return self._at is _At.END

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the data they held.  Raises BadHead."""
        data = self.rest + data
        found: list[bytes] = []
        at = 0
        while not self.ended:
            step = self._step(data, at, found)
            if not step:
                break
            at += step
        self.rest = data[at:]
        return found

    def _step(self, data: bytes, at: int, found: list[bytes]) -> int:
        """Read one part from a place; return its length, 0 if it is not complete."""
        if self._at is _At.DATA:
            piece = data[at : at + self._left]
            self._left -= len(piece)
            if piece:
                found.append(piece)
            if not self._left:
                self._at = _At.DATA_END
            return len(piece)
        end = data.find(b"\r\n", at, at + MAX_LINE_BYTES)
        if end < 0:
            if len(data) - at >= MAX_LINE_BYTES or b"\n" in data[at:]:
                raise BadHead("a line of a chunked body that does not end")
            return 0
        self._line(data[at:end])
        return end + 2 - at

    def _line(self, line: bytes) -> None:
        if self._at is _At.DATA_END:
            if line:
                raise BadHead("a chunk that is longer than it says")
            self._at = _At.SIZE
        elif self._at is _At.TRAILERS:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > MAX_LINE_BYTES:
                raise BadHead("trailers that are too long")
            if not line:
                self._at = _At.END
        else:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise BadHead("no size of a chunk")
            self._left = int(size[1], 16)
            self._at = _At.DATA if self._left else _At.TRAILERS


def chunk(data: bytes) -> bytes:
    """Return some data as a chunk; there is none for no data, which would be the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
