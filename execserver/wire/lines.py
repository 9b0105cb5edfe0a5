"""One JSON message per line: the framing of the stdio transport (wire contract, section 3).  No I/O."""

from __future__ import annotations


class LineTooLong(Exception):
    """A line is longer than the limit; its end may not have been seen."""


_PART_BYTES = 4096  # smaller parts are joined: a line that comes byte by byte must cost little memory


class LineSplitter:
    """Cuts a byte stream into lines; keeps the unfinished rest, at most `limit` bytes of it."""

    __slots__ = ("_limit", "_parts", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes | bytearray] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they were read; return the non-blank lines they completed, without line ends.

        Raises `LineTooLong` for a line above the limit; the splitter cannot be used after that.
        """
        head, *rest = data.split(b"\n")
        if not rest:
            self._keep(head)
            return []
        self._keep(head)
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [], 0
        self._keep(rest[-1])
        return [line for line in lines if line.strip()]

    def finish(self) -> list[bytes]:
        """Return the last line of a stream that ended without a line end, or nothing."""
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [line] if line.strip() else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise LineTooLong(f"a line is longer than {self._limit} bytes")
        if len(part) >= _PART_BYTES:
            self._parts.append(part)
        elif part and self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        elif part:
            self._parts.append(bytearray(part))
