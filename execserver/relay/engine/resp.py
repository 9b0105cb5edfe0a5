"""The protocol of Redis, version 2: commands to bytes, bytes to replies.  No I/O.

What comes from the engine is bounded: the length of a line, of a string and of a whole reply, the number of
elements and their depth.  Each byte is looked at once, however small the pieces are that arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Union

_MAX_LINE = 4096
_MAX_ERROR = 512
_MAX_REPLY_BYTES = 1024 * 1024
_MAX_ELEMENTS = 16 * 1024
_MAX_DEPTH = 4
_EMPTY = -1  # the length of a string or array that is not there

Word = bytes | str | int
Command = Sequence[Word]


class InvalidReply(Exception):
    """These bytes are no reply, or one beyond the bounds; nothing after them can be read."""


class Failure(NamedTuple):
    """An error as reply; its first word says which."""

    text: str

    @property
    def code(self) -> str:
        """The first word, such as `WRONGTYPE`."""
        return self.text.partition(" ")[0]


Reply = Union[bytes, int, None, Failure, "list[Reply]"]


def encode(command: Command) -> bytes:
    """Return the bytes of a command."""
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class Decoder:
    """Puts replies together."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._open: list[tuple[list[Reply], int]] = []  # arrays that are not complete, with their lengths
        self._elements = self._bytes = 0  # of the reply that is being read

    def feed(self, data: bytes) -> list[Reply]:
        """Take bytes; return the replies that they complete.  Raises InvalidReply."""
        self._data += data
        replies: list[Reply] = []
        at = 0
        while (found := self._element(at)) is not None:
            value, at, length = found
            if length is not None:
                self._begin(length)
                if length:
                    continue
                value = self._open.pop()[0]
            self._close(value, replies)
        del self._data[:at]
        return replies

    def _element(self, at: int) -> tuple[Reply, int, int | None] | None:
        """Return a value, the position behind it, and the length if it is an array that begins."""
        end = self._data.find(b"\r\n", at, at + _MAX_LINE)
        if end < 0:
            if len(self._data) - at >= _MAX_LINE:
                raise InvalidReply("a line is too long")
            return None
        kind, line = self._data[at : at + 1], bytes(self._data[at + 1 : end])
        if kind == b"+":
            return line, end + 2, None
        if kind == b"-":
            return Failure(_printable(line)), end + 2, None
        if kind == b":":
            return _number(line), end + 2, None
        if kind == b"$":
            return self._string(_number(line), end + 2)
        if kind == b"*":
            length = _number(line)
            return (None, end + 2, None) if length == _EMPTY else ([], end + 2, length)
        raise InvalidReply("an unknown kind of reply")

    def _string(self, length: int, at: int) -> tuple[Reply, int, int | None] | None:
        if length == _EMPTY:
            return None, at, None
        if not 0 <= length <= _MAX_REPLY_BYTES - self._bytes:
            raise InvalidReply("a reply is too large")
        end = at + length
        if len(self._data) < end + 2:
            return None
        if self._data[end : end + 2] != b"\r\n":
            raise InvalidReply("a string does not end")
        self._bytes += length
        return bytes(self._data[at:end]), end + 2, None

    def _begin(self, length: int) -> None:
        self._elements += length
        if length < 0 or self._elements > _MAX_ELEMENTS or len(self._open) >= _MAX_DEPTH:
            raise InvalidReply("a reply has too many elements")
        self._open.append(([], length))

    def _close(self, value: Reply, replies: list[Reply]) -> None:
        """Put a complete value where it belongs; it may complete the arrays around it."""
        while self._open:
            array, length = self._open[-1]
            array.append(value)
            if len(array) < length:
                return
            value = self._open.pop()[0]
        replies.append(value)
        self._elements = self._bytes = 0


def _printable(line: bytes) -> str:
    """Return an error's text for logs, whoever wrote it."""
    text = line[:_MAX_ERROR].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "?" for character in text)


def _number(line: bytes) -> int:
    digits = line[1:] if line[:1] == b"-" else line
    if not digits.isdigit() or len(digits) > 18:
        raise InvalidReply("a number is no number")
    return int(line)
