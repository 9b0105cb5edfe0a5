"""The proof in the answer to a WebSocket upgrade that the key of the request was read.  No I/O.

A module of its own: a client needs nothing else of what answers requests.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha1
else:
    try:
        from _sha1 import sha1  # Python's own: hashlib loads all of OpenSSL, 3 ms of a short command
    except ImportError:
        from hashlib import sha1

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


def accept_value(key: str) -> str:
    """The `Sec-WebSocket-Accept` value of a key."""
    digest = sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    return binascii.b2a_base64(digest, newline=False).decode()
