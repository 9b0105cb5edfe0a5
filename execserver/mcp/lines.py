"""Cuts the input into lines; a line that is too long is dropped, and nothing else.  No I/O."""

from __future__ import annotations

TOO_LONG = b"\n"  # in place of a line that was dropped; a real line never contains its own end


class BoundedLines:
    """Keeps the unfinished rest of a byte stream, at most `limit` bytes of it."""

    __slots__ = ("_limit", "_overlong", "_parts", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._overlong = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they were read; return the non-blank lines they completed, without line ends."""
        first, *rest = data.split(b"\n")
        self._keep(first)
        lines = []
        for part in rest:
            lines += self.finish()
            self._keep(part)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if the stream ended without a line end."""
        line = TOO_LONG if self._overlong else b"".join(self._parts)
        self._parts, self._size, self._overlong = [], 0, False
        return [line] if line is TOO_LONG or line.strip() else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts, self._overlong = [], True
        elif part:
            self._parts.append(part)
