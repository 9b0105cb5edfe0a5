"""Heads of HTTP/1 messages: strictly read, and written anew for the next hop.

Two programs must never see different messages in the same bytes, so everything ambiguous is refused: a line
end other than CR LF, a folded line, blanks around a name, control characters, more than one Host, two
statements about the length of the body, a transfer coding other than `chunked`, and a `Connection` that names
what says where the message goes or ends.
"""

from __future__ import annotations

import enum
import re
from typing import TypeVar

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/1\.([01])" % _TOKEN)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?")
_NAME = re.compile(_TOKEN)
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_OF_THIS_HOP = frozenset((b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"))
# Without them the next hop would find another end of the body, or another host.
_OF_EVERY_HOP = frozenset((b"content-length", b"host"))
_END = b"\r\n\r\n"
_NO_VALUES: list[bytes] = []
_NO_OPTIONS: frozenset[bytes] = frozenset()


class BadHead(ValueError):
    """The bytes are no head that every reader takes for the same."""


class Body(enum.Enum):
    """How the end of a body is found; LENGTH is with a number of bytes."""

    NONE = enum.auto()
    LENGTH = enum.auto()
    CHUNKED = enum.auto()
    UNTIL_CLOSE = enum.auto()


# Under names of their own: to look a member up in its class takes 1,100 instructions in Python 3.11.
NO_BODY, BY_LENGTH, CHUNKED, UNTIL_CLOSE = Body


class Head:
    """The fields of a message, which do not change.

    Names are kept as they were written, and compared in lower case.
    """

    __slots__ = ("_values", "fields", "minor")

    def __init__(self, minor: int, fields: list[tuple[bytes, bytes]]) -> None:
        self.minor = minor
        self.fields = fields
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(value)

    def all(self, name: bytes) -> list[bytes]:
        """Return the values of a field, by its name in lower case; the list is not the caller's to change."""
        return self._values.get(name, _NO_VALUES)

    @property
    def connection_options(self) -> frozenset[bytes]:
        """What `Connection` says, in lower case."""
        values = self._values.get(b"connection")
        if values is None:
            return _NO_OPTIONS
        return frozenset(option.strip(b"\t ").lower() for value in values for option in value.split(b","))

    @property
    def keeps_alive(self) -> bool:
        """True if the sender wants to go on with the connection."""
        if self.minor == 0:
            return b"keep-alive" in self.connection_options
        return b"close" not in self.connection_options

    def passed_on(self) -> list[tuple[bytes, bytes]]:
        """Return the fields for the next hop: without those of this one, and without the proxy's."""
        options = self.connection_options
        dropped = _OF_THIS_HOP | options if options else _OF_THIS_HOP
        return [
            field
            for field in self.fields
            if (name := field[0].lower()) not in dropped and not name.startswith(b"proxy-")
        ]

    def framing(self) -> tuple[Body, int]:
        """Return what the fields say of the body: how it ends and, for LENGTH, its size.  Raises BadHead."""
        lengths, codings = self.all(b"content-length"), self.all(b"transfer-encoding")
        if codings:
            if lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or self.minor == 0:
                raise BadHead("ambiguous length of the body")
            return CHUNKED, 0
        if not lengths:
            return NO_BODY, 0
        if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            raise BadHead("ambiguous length of the body")
        return BY_LENGTH, int(lengths[0])


class RequestHead(Head):
    """What a client asks."""

    __slots__ = ("method", "target")

    def __init__(self, method: str, target: str, minor: int, fields: list[tuple[bytes, bytes]]) -> None:
        super().__init__(minor, fields)
        self.method = method
        self.target = target


class ResponseHead(Head):
    """What a server answers."""

    __slots__ = ("reason", "status")

    def __init__(self, status: int, reason: bytes, minor: int, fields: list[tuple[bytes, bytes]]) -> None:
        super().__init__(minor, fields)
        self.status = status
        self.reason = reason

    @property
    def is_interim(self) -> bool:
        """True if the real answer follows."""
        return self.status < 200

    def body(self, method: str) -> tuple[Body, int]:
        """Return how the body of the answer to a method ends.  Raises BadHead."""
        framing = self.framing()
        if method == "HEAD" or self.is_interim or self.status in (204, 304):
            return NO_BODY, 0
        return (UNTIL_CLOSE, 0) if framing[0] is NO_BODY else framing


_Kind = TypeVar("_Kind", bound=Head)


def head_length(data: bytes | bytearray) -> int:
    """Return how long the head at the beginning of some bytes is; 0 if it is not complete yet.

    Raises BadHead for one that is too long.
    """
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(data) >= MAX_HEAD_BYTES:
            raise BadHead("the head is too long")
        return 0
    return end + len(_END)


def parse_request(head: bytes) -> RequestHead:
    """Read a complete head of a request.  Raises BadHead."""
    line, fields = _split(head)
    found = _REQUEST.fullmatch(line)
    if found is None:
        raise BadHead("no request line")
    request = RequestHead(found[1].decode(), found[2].decode(), int(found[3]), fields)
    if len(request.all(b"host")) > 1:
        raise BadHead("more than one Host")
    request.framing()
    return _checked(request)


def parse_response(head: bytes) -> ResponseHead:
    """Read a complete head of a response.  Raises BadHead."""
    line, fields = _split(head)
    found = _STATUS.fullmatch(line)
    if found is None:
        raise BadHead("no status line")
    return _checked(ResponseHead(int(found[2]), found[3] or b"", int(found[1]), fields))


def _checked(head: _Kind) -> _Kind:
    if not _OF_EVERY_HOP.isdisjoint(head.connection_options):
        raise BadHead("a field of the message that is to be dropped")
    return head


def _split(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    line, *rest = head.removesuffix(_END).split(b"\r\n")
    if len(rest) > MAX_HEADERS:
        raise BadHead("too many fields")
    fields = []
    for one in rest:
        # Not in one expression: for a value of blanks its time would grow with their square.
        name, colon, value = one.partition(b":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadHead("a field that cannot be read")
        fields.append((name, value.strip(b"\t ")))
    return line, fields


def written(first_line: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a head."""
    lines = [b"%b: %b" % field for field in fields]
    return b"\r\n".join((first_line, *lines, b"", b""))
