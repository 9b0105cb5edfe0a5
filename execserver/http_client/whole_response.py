"""A response in its plainest form that arrives whole, as most answers of an API do: read without h11.

Everything else is left to `response_parser`, which also says what is wrong with it.  A test feeds the same
responses to both.  No I/O.
"""

from __future__ import annotations

import re
from typing import Final

from execserver.http_client.response_events import Framing, ResponseEvent, ResponseHead

# One space where the standard has one, and no line that is empty, folded, or not ASCII.
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*\r\n((?:[A-Za-z0-9-]+: [!-~]+(?: [!-~]+)*\r\n)+)\r\n"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}")
_STATUS_WITHOUT_BODY: Final = (b"204", b"304")
_METHODS_WITHOUT_BODY: Final = ("HEAD", "CONNECT")
# Whether the connection goes on, and where the body ends without a length, is for the other reader to say.
_OTHERS: Final = (b"connection", b"transfer-encoding")


class WholeResponse:
    """A `ResponseReader` of what has been read already."""

    __slots__ = ("_left", "is_reusable")
    is_whole = True

    def __init__(self, head: ResponseHead, body: bytes) -> None:
        self.is_reusable = True
        self._left: list[ResponseEvent] = [body, head] if body else [head]  # the last one is the next

    def receive_data(self, data: bytes) -> None:
        """Note that more has arrived than the response."""
        self.is_reusable = False

    def next_event(self) -> ResponseEvent:
        """Return the head, then the body if there is one, and then the end."""
        return self._left.pop() if self._left else Framing.ENDED


def whole_response(method: str, data: bytes) -> WholeResponse | None:
    """Return the response to a request that `data` is; None unless it is one whole plain response."""
    found = _HEAD.match(data)
    if found is None or found[1] in _STATUS_WITHOUT_BODY or method in _METHODS_WITHOUT_BODY:
        return None
    lines: list[tuple[bytes, bytes]] = []
    length: bytes | None = None
    for line in found[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name in _OTHERS or (name == b"content-length" and length is not None):
            return None
        if name == b"content-length":
            length = value
        lines.append((name, value))
    body = data[found.end() :]
    if length is None or _LENGTH.fullmatch(length) is None or int(length) != len(body):
        return None
    return WholeResponse(ResponseHead(int(found[1]), lines), body)
