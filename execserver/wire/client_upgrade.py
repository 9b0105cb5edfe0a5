"""The client's half of a WebSocket upgrade: the request, and whether the answer is the usual one.  No I/O.

Only an answer that is right beyond doubt is known here.  For every other the `websockets` library decides
whether it will do and what is wrong with it; most connections need not load it.
"""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Mapping
from typing import Final

from execserver.wire.accepting import accept_value

HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 8 * 1024
_BEGINNING: Final = b"HTTP/1.1 101 "
_HEADER = re.compile(rb"([A-Za-z0-9-]+):[ \t]*([ -~]*?)[ \t]*")
_NEEDED: Final = {b"connection": b"upgrade", b"upgrade": b"websocket"}
_ACCEPT: Final = b"sec-websocket-accept"
_OTHERS: Final = b"sec-websocket-"  # extensions and subprotocols, for which nobody asked
_LINE_END = re.compile(r"[\r\n]")


def new_key() -> str:
    """Return a fresh value of `Sec-WebSocket-Key`."""
    return binascii.b2a_base64(os.urandom(16), newline=False).decode()


def request(
    authority: str,
    resource: str,
    key: str,
    headers: Mapping[str, str],
    user: tuple[str, str] | None = None,
) -> bytes:
    """Return the request.  Raises ValueError, which names the header, for one with a line end."""
    lines = [
        f"GET {resource} HTTP/1.1",
        f"Host: {authority}",
        *([] if user is None else [f"Authorization: {_basic(user)}"]),
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    for name, value in headers.items():
        if _LINE_END.search(f"{name}{value}"):
            raise ValueError(f"the header {name!r} holds a line end")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode()


def may_be_usual(received: bytes | bytearray) -> bool:
    """True while bytes that do not hold a whole head may become the usual answer."""
    begun = received[: len(_BEGINNING)]
    return len(received) <= _MAX_HEAD_BYTES and _BEGINNING.startswith(begun) and HEAD_END not in received


def is_usual(head: bytes, key: str) -> bool:
    """Return whether the bytes up to the empty line accept the request with this key."""
    first, *lines = head.split(b"\r\n")
    if not first.startswith(_BEGINNING) or not first.isascii() or not first.decode().isprintable():
        return False
    found: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in found:
            return False
        found[header[1].lower()] = header[2]
    if any(found.get(name, b"").lower() != value for name, value in _NEEDED.items()):
        return False
    if any(name.startswith(_OTHERS) and name != _ACCEPT for name in found):
        return False
    return found.get(_ACCEPT) == accept_value(key).encode()


def _basic(user: tuple[str, str]) -> str:
    return f"Basic {binascii.b2a_base64(':'.join(user).encode(), newline=False).decode()}"
