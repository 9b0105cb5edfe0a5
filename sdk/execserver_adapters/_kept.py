"""Output within a limit: the beginning and the end of a stream, and how much between them was left out."""

from __future__ import annotations

from typing import Final

_LEFT_OUT: Final = "\n[... {} bytes left out ...]\n"


class Kept:
    """Collects a stream of bytes; holds at most its first `head` and about twice its last `tail` bytes."""

    __slots__ = ("_end", "_head", "_tail", "_total", "lost")

    def __init__(self, head: int, tail: int) -> None:
        if head < 0 or tail < 0:
            raise ValueError("a limit of output is negative")
        self._head = (head, bytearray())
        self._tail = tail
        self._end = bytearray()
        self._total = 0
        self.lost = 0  # bytes that never arrived here

    @property
    def left_out(self) -> int:
        """The bytes between the beginning and the end that are not kept, with those that never arrived."""
        _, begun = self._head
        return max(0, self._total - len(begun) - self._tail) + self.lost

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._total += len(data)
        limit, begun = self._head
        if len(begun) < limit:
            room = limit - len(begun)
            begun += data[:room]
            data = data[room:]
        if not data or not self._tail:
            return
        self._end += data[-self._tail :]
        if len(self._end) > 2 * self._tail:  # so that each byte is moved at most once
            del self._end[: -self._tail]

    def joined(self, note: bool = True) -> bytes:
        """Return what is kept; with `note` a line stands where something is left out."""
        _, begun = self._head
        end = self._end[-self._tail :] if self._tail else b""
        between = _LEFT_OUT.format(self.left_out).encode() if note and self.left_out else b""
        return bytes(begun) + between + bytes(end)

    def text(self, note: bool = True) -> str:
        """Return it as text, with the replacement character for what is no UTF-8."""
        return self.joined(note).decode("utf-8", "replace")
