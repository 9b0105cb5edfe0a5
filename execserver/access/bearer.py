"""The token in an `Authorization` header, and the authenticator that knows one token.

Pure.  What cannot be read as a bearer token is refused before any token is looked at.  No exception and no
repr holds a token.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from execserver.access.identity import Identity, NotAdmitted

MISSING = "missing websocket bearer token"
UNREADABLE = "invalid authorization header"
WRONG_TOKEN = "invalid websocket bearer token"

_SCHEME = b"bearer"
_OTHER_BYTES = re.compile(rb"[^\t\x20-\x7e]")
_BLANKS = b" \t"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def bearer_token(authorization: bytes | None) -> bytes:
    """Return the token of a header's value, never empty; raise NotAdmitted."""
    if authorization is None:
        raise NotAdmitted(MISSING)
    # A blank, no tab, ends the scheme; tabs and blanks around the token do not count.
    scheme, _, rest = authorization.strip(_BLANKS).partition(b" ")
    token = rest.strip(_BLANKS)
    if scheme.lower() != _SCHEME or not token or _OTHER_BYTES.search(token):
        raise NotAdmitted(UNREADABLE)
    return token


def is_sha256(text: str) -> bool:
    """True for the 64 hexadecimal digits of a SHA-256 digest, in any case."""
    return _DIGEST.fullmatch(text) is not None


class CapabilityToken:
    """Whoever has the one token may connect; an `Authenticator`.  Knows only its digest."""

    __slots__ = ("_digest",)
    may_wait = False

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    @classmethod
    def of(cls, token: str) -> CapabilityToken:
        """Return the authenticator of this token."""
        return cls(hashlib.sha256(token.encode()).digest())

    def identify(self, authorization: bytes | None, now: float) -> Identity:
        """Return the holder of the token; raise NotAdmitted."""
        given = hashlib.sha256(bearer_token(authorization)).digest()
        # Of equal length whatever is given, and compared in constant time: nothing tells how much was right.
        if not hmac.compare_digest(given, self._digest):
            raise NotAdmitted(WRONG_TOKEN)
        return _HOLDER


_HOLDER = Identity("token", "capability-token")
