"""The first message of a TLS client: which server it names (SNI, RFC 6066).

Reads no further than that; whatever does not begin as TLS is not TLS here.
"""

from __future__ import annotations

from execserver.egress.hosts import BadHost, normal_host

MAX_HELLO_BYTES = 32 * 1024
_HANDSHAKE, _CLIENT_HELLO = 22, 1
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

    Raises BadHello.
    """
    message = b""
    while True:
        if data[:1] not in (b"", b"\x16") or data[1:2] not in (b"", b"\x03"):
            if message:
                raise BadHello("another record inside of the message")
            return b""
        length = int.from_bytes(data[3:_RECORD_HEAD]) if len(data) >= _RECORD_HEAD else 0
        if len(data) < _RECORD_HEAD + max(length, 1):
            return None
        message += data[_RECORD_HEAD : _RECORD_HEAD + length]
        data = data[_RECORD_HEAD + length :]
        if message[0] != _CLIENT_HELLO:
            return b""
        if len(message) >= _MESSAGE_HEAD:
            end = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD])
            if end > MAX_HELLO_BYTES:
                raise BadHello("too long")
            if len(message) >= end:
                return message[:end]


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
