"""SOCKS 5 as a server hears it: the greeting, the request, the replies (RFC 1928, without passwords)."""

from __future__ import annotations

import enum
import socket
from functools import lru_cache

from execserver.egress.decisions import Protocol, Question
from execserver.egress.hosts import BadHost, normal_host

_VERSION = 5
NO_METHOD = b"\x05\xff"
WITHOUT_PASSWORD = b"\x05\x00"
_NONE_NEEDED = 0
_V4, _NAME, _V6 = 1, 3, 4
_HEAD, _PORT = 4, 2  # bytes before an address and behind it
_LENGTHS = {_V4: _HEAD + 4 + _PORT, _V6: _HEAD + 16 + _PORT}


class Command(enum.Enum):
    """What a client wants."""

    CONNECT = 1
    BIND = 2
    UDP_ASSOCIATE = 3


class Reply(enum.Enum):
    """Why a request failed."""

    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    REFUSED = 5
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_NOT_SUPPORTED = 8


class BadSocks(ValueError):
    """The bytes are not SOCKS 5; `answer` is what the client gets before its connection ends."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__("not SOCKS 5")
        self.answer = answer


class SocksRequest:
    """A request: `is_name` if the host came as a name and not as an address."""

    __slots__ = ("command", "is_name", "question")

    def __init__(self, command: Command, host: str, port: int, *, is_name: bool) -> None:
        self.command = command
        self.question = Question(Protocol.SOCKS5_TCP, host, port)
        self.is_name = is_name


def greeting_length(data: bytes) -> int:
    """Return the length of the greeting at the beginning of some bytes, 0 if it is not complete.

    Raises BadSocks for another protocol, and for a client that wants to give a password.
    """
    if data[:1] not in (b"", b"\x05"):
        raise BadSocks
    if len(data) < 2 or len(data) < 2 + data[1]:
        return 0
    if _NONE_NEEDED not in data[2 : 2 + data[1]]:
        raise BadSocks(NO_METHOD)
    return 2 + data[1]


def request_length(data: bytes) -> int:
    """Return the length of the request at the beginning of some bytes, 0 if it is not complete.

    Raises BadSocks.
    """
    if data[:1] not in (b"", b"\x05") or data[2:3] not in (b"", b"\x00"):
        raise BadSocks(failed(Reply.GENERAL_FAILURE))
    if len(data) < 5:
        return 0
    kind = data[3]
    if kind == _NAME:
        length = _HEAD + 1 + data[4] + _PORT
    elif kind in _LENGTHS:
        length = _LENGTHS[kind]
    else:
        raise BadSocks(failed(Reply.ADDRESS_NOT_SUPPORTED))
    return length if len(data) >= length else 0


@lru_cache(maxsize=256)  # a process asks for the same few again and again
def parse_request(data: bytes) -> SocksRequest:
    """Read a complete request.  Raises BadSocks."""
    try:
        command = Command(data[1])
    except ValueError:
        raise BadSocks(failed(Reply.COMMAND_NOT_SUPPORTED)) from None
    kind, address = data[3], data[4:-2]
    try:
        if kind == _NAME:
            text = address[1:].decode("ascii")
        else:
            text = socket.inet_ntop(socket.AF_INET if kind == _V4 else socket.AF_INET6, address)
        host = normal_host(text)
    except (BadHost, UnicodeDecodeError):
        raise BadSocks(failed(Reply.GENERAL_FAILURE)) from None
    return SocksRequest(command, host, int.from_bytes(data[-2:]), is_name=kind == _NAME)


def failed(reply: Reply) -> bytes:
    """Return a refusal."""
    return bytes((_VERSION, reply.value, 0, _V4)) + bytes(6)


def succeeded(address: str, port: int) -> bytes:
    """Return what tells of a connection from this address."""
    if ":" in address:
        return bytes((_VERSION, 0, 0, _V6)) + socket.inet_pton(socket.AF_INET6, address) + port.to_bytes(2)
    return bytes((_VERSION, 0, 0, _V4)) + socket.inet_aton(address) + port.to_bytes(2)
