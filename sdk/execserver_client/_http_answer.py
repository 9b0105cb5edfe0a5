"""One HTTP/1.1 answer, cut out of the bytes of a connection.  No I/O.

Only what a JSON API needs: a status and a whole body of bounded length.  Whatever is ambiguous is refused.
"""

from __future__ import annotations

import re
from typing import Final

from execserver.remote.answers import MAX_REPLY_BYTES, Response

MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_INTERIM: Final = 16
_MAX_LINE_BYTES: Final = 4096
_HEAD_END: Final = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,12}")
_WITHOUT_BODY: Final = frozenset((204, 304))


class BrokenAnswer(Exception):
    """What came is no answer that can be understood, or it is too long; the text says which."""


class AnswerReader:
    """Takes received bytes until there is an answer."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._body = bytearray()
        self._status = 0  # of the answer whose body is read; 0 before its head is there
        self._interim = 0
        self._length: int | None = None  # of the body; None: chunked, or up to the end of the connection
        self._is_chunked = False
        self._chunk_left = 0  # bytes of the present chunk and its line end that are still to come
        self._in_trailers = False

    def feed(self, data: bytes | bytearray) -> Response | None:
        """Take bytes; return the answer once it is complete.  Raises BrokenAnswer."""
        self._received += data
        while not self._status:
            if not self._take_head():
                return None
        if self._is_chunked:
            return self._take_chunks()
        self._body += self._received
        self._received.clear()
        return self._checked(self._length is not None and len(self._body) >= self._length)

    def end(self) -> Response:
        """Return the answer that the end of the connection completes.  Raises BrokenAnswer."""
        if not self._status or self._is_chunked or self._length is not None:
            raise BrokenAnswer("the connection ended before the answer did")
        return Response(self._status, bytes(self._body))

    def _take_head(self) -> bool:
        head, end, rest = self._received.partition(_HEAD_END)
        if len(head) > MAX_HEAD_BYTES:
            raise BrokenAnswer(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")
        if not end:
            return False
        self._received = rest
        first, *lines = bytes(head).split(b"\r\n")
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise BrokenAnswer("the answer is no HTTP")
        status = int(found[1])
        if status < 200:
            self._interim += 1
            if status == 101 or self._interim > _MAX_INTERIM:
                raise BrokenAnswer(f"the status {status} was not asked for")
            return True
        self._status = status
        self._frame(lines)
        return True

    def _frame(self, lines: list[bytes]) -> None:
        """Learn from the head where the body ends."""
        lengths: set[bytes] = set()
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise BrokenAnswer("a line of the answer's head is no header")
            name = field[1].lower()
            if name == b"content-length":
                lengths.add(field[2])
            elif name == b"transfer-encoding":
                if field[2].lower() != b"chunked" or self._is_chunked:
                    raise BrokenAnswer("the answer has an unknown transfer coding")
                self._is_chunked = True
        if len(lengths) + self._is_chunked > 1:
            raise BrokenAnswer("the answer says twice how long it is")
        for length in lengths:
            if not _LENGTH.fullmatch(length):
                raise BrokenAnswer("the answer's length is no number")
            self._length = int(length)
        if self._status in _WITHOUT_BODY:
            self._length, self._is_chunked = 0, False

    def _take_chunks(self) -> Response | None:
        while True:
            if self._chunk_left > 2:
                part = self._received[: self._chunk_left - 2]
                self._body += part
                del self._received[: len(part)]
                self._chunk_left -= len(part)
                self._checked(False)
                if self._chunk_left > 2:
                    return None
            line, end, rest = self._received.partition(b"\r\n")
            if len(line) > _MAX_LINE_BYTES:
                raise BrokenAnswer("a line of the answer's framing is too long")
            if not end:
                return None
            self._received = rest
            if self._take_line(bytes(line)):
                return self._checked(True)

    def _take_line(self, line: bytes) -> bool:
        """Take a line of the framing; return whether it is the last one."""
        if self._in_trailers:
            self._interim += 1
            if line and self._interim > _MAX_INTERIM:
                raise BrokenAnswer("the answer has too many trailers")
            return not line
        if self._chunk_left:  # the line end of a chunk
            if line:
                raise BrokenAnswer("a chunk of the answer is longer than it says")
            self._chunk_left = 0
            return False
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise BrokenAnswer("a chunk of the answer has no length")
        size = int(found[1], 16)
        self._in_trailers = not size
        self._chunk_left = size + 2 if size else 0
        return False

    def _checked(self, is_complete: bool) -> Response | None:
        if max(len(self._body), self._length or 0) > MAX_REPLY_BYTES:
            raise BrokenAnswer(f"it is longer than {MAX_REPLY_BYTES} bytes")
        if not is_complete:
            return None
        return Response(self._status, bytes(self._body[: self._length]))
