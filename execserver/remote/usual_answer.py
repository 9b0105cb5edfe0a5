"""Answers in their usual form: HTTP/1.1, a body of known length, all of it in one piece.

Nearly all answers of a registry are such, and h11 takes a tenth of the time of a handshake for one.  The
form is narrow on purpose: whatever does not fit it, down to an odd byte in a header, is h11's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gevent import socket

from execserver.services.http.exchange import READ_BYTES, BrokenResponse, Exchange, ResponseHead

_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [ -~]*)?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)+)\r\n"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,7}")
_WITHOUT_BODY: Final = (204, 304)
_BENDING: Final = frozenset((b"connection", b"transfer-encoding", b"upgrade"))


class UsualAnswer(NamedTuple):
    """A whole answer."""

    head: ResponseHead
    body: bytes


def usual_answer(data: bytes) -> UsualAnswer | None:
    """Return the answer that these bytes are, to anything but HEAD and CONNECT; None for any other form."""
    found = _HEAD.match(data)
    if found is None:
        return None
    status = int(found[1])
    lines: list[tuple[bytes, bytes]] = []
    for line in found[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        lines.append((name.lower(), value.strip(b" \t")))
    names = [name for name, _ in lines]
    if status in _WITHOUT_BODY or names.count(b"content-length") != 1 or not _BENDING.isdisjoint(names):
        return None
    length = lines[names.index(b"content-length")][1]
    if not _LENGTH.fullmatch(length) or found.end() + int(length) != len(data):
        return None
    return UsualAnswer(ResponseHead(status, lines), data[found.end() :])


class KeptExchange(Exchange):
    """POST requests one after the other, as long as their answers are usual ones."""

    METHOD: Final = "POST"

    def __init__(self, sock: socket.socket, would_block: tuple[type[OSError], ...]) -> None:
        super().__init__(sock, self.METHOD, would_block)
        self._body: bytes | None = None

    @property
    def sock(self) -> socket.socket:
        """The connection."""
        return self._sock

    @property
    def is_fresh(self) -> bool:
        """Tell whether nothing of the last answer is left, so that this can ask again."""
        return self._body == b""

    def receive_head(self) -> ResponseHead:
        """Wait for the response; raise BrokenResponse."""
        self._body = None
        try:
            data = self._sock.recv(READ_BYTES)
        except OSError as error:
            raise BrokenResponse(str(error)) from None
        answer = usual_answer(data)
        if answer is None:
            self._parser.receive_data(data)
            return super().receive_head()
        self._body = answer.body
        return answer.head

    def read(self) -> bytes:
        """Return the body, then nothing; of an answer that is not usual, some of it."""
        if self._body is None:
            return super().read()
        body, self._body = self._body, b""
        return body

    def release(self) -> tuple[socket.socket, tuple[type[OSError], ...]] | None:
        """See `Exchange`."""
        return super().release() if self._body is None else (self._sock, self._would_block)
