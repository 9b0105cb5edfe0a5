"""The first message of a TLS client: which server it names (SNI, RFC 6066).

Reads no further than that; whatever does not begin as TLS is not TLS here.
"""

from __future__ import annotations

from execserver.egress.hosts import BadHost, normal_host

MAX_HELLO_BYTES = 32 * 1024
MAX_RECORDS = 512  # for one message; real clients need one or two
_HANDSHAKE, _CLIENT_HELLO, _MAJOR = 22, 1, 3
# The first byte of each kind of record, and nothing at all.
_RECORDS = frozenset((b"", *(bytes((kind,)) for kind in range(20, 25))))
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSION_AND_RANDOM = 2 + 32
_SERVER_NAME, _HOST_NAME = 0, 0


class BadHello(ValueError):
    """It begins as TLS, and is no message that every reader takes for the same."""


class _Reader:
    """Takes parts of known length from some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Return the next bytes.  Raises BadHello if there are not so many."""
        if len(self.data) < count:
            raise BadHello("shorter than it says")
        found, self.data = self.data[:count], self.data[count:]
        return found

    def counted(self, size: int) -> bytes:
        """Return what is behind its own length of `size` bytes."""
        return self.take(int.from_bytes(self.take(size)))


def hello_of(data: bytes) -> bytes | None:
    """Return the message at the beginning of a TLS connection; empty for anything else, None if it goes on.

    Raises BadHello.  Takes a short time, also when it is asked after each byte.
    """
    if data[:1] not in _RECORDS or data[1:2] not in (b"", b"\x03"):
        return b""
    pieces: list[bytes] = []
    at = 0
    while len(data) >= at + _RECORD_HEAD:
        # Some servers skip a record of another kind here, and read the message behind it.
        if data[at] != _HANDSHAKE or data[at + 1] != _MAJOR:
            raise BadHello("another record before the message or inside of it")
        length = int.from_bytes(data[at + 3 : at + _RECORD_HEAD])
        if not length or len(pieces) >= MAX_RECORDS:
            raise BadHello("too many records, or an empty one")
        if len(data) < at + _RECORD_HEAD + length:
            break
        at += _RECORD_HEAD + length
        pieces.append(data[at - length : at])
    return _message(b"".join(pieces))


def _message(data: bytes) -> bytes | None:
    if data and data[0] != _CLIENT_HELLO:
        raise BadHello("another message than the first one of a client")
    if len(data) < _MESSAGE_HEAD:
        return None
    end = _MESSAGE_HEAD + int.from_bytes(data[1:_MESSAGE_HEAD])
    if end > MAX_HELLO_BYTES:
        raise BadHello("too long")
    return data[:end] if len(data) >= end else None


def server_name(hello: bytes) -> str | None:
    """Return the normal name in a complete message, None if it names no server.  Raises BadHello."""
    body = _Reader(hello[_MESSAGE_HEAD:])
    body.take(_VERSION_AND_RANDOM)
    for size in (1, 2, 1):  # session, ciphers, compressions
        body.counted(size)
    if not body.data:
        return None
    names = []
    extensions = _Reader(body.counted(2))
    while extensions.data:
        kind, content = int.from_bytes(extensions.take(2)), extensions.counted(2)
        if kind == _SERVER_NAME:
            names.append(_name(content))
    if len(names) > 1:
        raise BadHello("two servers are named")
    return names[0] if names else None


def _name(content: bytes) -> str:
    entries = _Reader(_Reader(content).counted(2))
    kind, name = entries.take(1)[0], entries.counted(2)
    if kind != _HOST_NAME or entries.data:
        raise BadHello("more than one name")
    try:
        return normal_host(name.decode("ascii"))
    except (BadHost, UnicodeDecodeError):
        raise BadHello("the name is none") from None
