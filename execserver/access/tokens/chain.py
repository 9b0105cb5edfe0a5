"""The text of a token: an id, its caveats, and the end of a chain of HMACs over them.

    xst1.ID.CAVEAT.CAVEAT[...].MAC

The first link is the HMAC of version and id under the server's key; every caveat makes the next link, with
the link before as the key.  Whoever has a token can add a caveat, since its MAC is the key for the next link.
Nobody can take one away or change their order: that needs an earlier link, and HMAC does not run backwards.
No I/O, no clock.  All work is bounded: by MAX_TOKEN_BYTES before anything is looked at, by MAX_CAVEATS after.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable
from typing import NamedTuple

from execserver.access.tokens.caveats import BadCaveat, restricted

MAX_TOKEN_BYTES = 8192  # a request head has twice that
MAX_CAVEATS = 32
KEY_BYTES = 32
TOKEN_ID = re.compile(r"[0-9a-f]{16}")

_VERSION = "xst1"
_CAVEAT = re.compile(r"[A-Za-z0-9_-]+")
_MAC = re.compile(r"[A-Za-z0-9_-]{43}")


class BadToken(Exception):
    """The text is no token, or not one of this key.  The exception says no word of it."""


class Token(NamedTuple):
    """The parts of a token.  Whether it is genuine says `genuine` only."""

    id: str
    caveats: tuple[str, ...]
    mac: str

    @property
    def text(self) -> str:
        """The token as its holder sends it."""
        return ".".join((_VERSION, self.id, *self.caveats, self.mac))

    def __repr__(self) -> str:
        return f"Token(id={self.id!r}, caveats={len(self.caveats)})"  # without its secret


def minted(key: bytes, token_id: str, caveats: Iterable[str]) -> Token:
    """Return a new token.  Raises BadCaveat, also for more than a token can hold."""
    if len(key) != KEY_BYTES or not TOKEN_ID.fullmatch(token_id):
        raise ValueError("not a key or not an id")
    return _extended(Token(token_id, (), _encoded(_first(key, token_id))), caveats)


def narrowed(token: Token, caveats: Iterable[str]) -> Token:
    """Return a token that may do less, made without the server's key.  Raises BadCaveat, BadToken."""
    return _extended(token, caveats)


def parsed(text: str) -> Token:
    """Return the parts of a token's text.  Raises BadToken."""
    if len(text) > MAX_TOKEN_BYTES:
        raise BadToken("it is too long")
    version, *parts = text.split(".")
    if version != _VERSION or not 2 <= len(parts) <= MAX_CAVEATS + 2:
        raise BadToken("it does not have the form of a token")
    token_id, *caveats, mac = parts
    if not (TOKEN_ID.fullmatch(token_id) and all(map(_CAVEAT.fullmatch, caveats)) and _MAC.fullmatch(mac)):
        raise BadToken("it does not have the form of a token")
    return Token(token_id, tuple(caveats), mac)


def genuine(key: bytes, token: Token) -> bool:
    """Tell whether a token was made with the server's key; in constant time, whatever its id."""
    link = _first(key, token.id)
    for caveat in token.caveats:
        link = _next(link, caveat)
    return hmac.compare_digest(_encoded(link), token.mac)


def _extended(token: Token, caveats: Iterable[str]) -> Token:
    try:
        link = base64.urlsafe_b64decode(token.mac + "=")
    except binascii.Error:
        raise BadToken("it does not have the form of a token") from None
    given = tuple(caveats)
    restricted((*token.caveats, *given))
    for caveat in given:
        link = _next(link, caveat)
    longer = Token(token.id, (*token.caveats, *given), _encoded(link))
    if len(longer.caveats) > MAX_CAVEATS or len(longer.text) > MAX_TOKEN_BYTES:
        raise BadCaveat(f"a token has at most {MAX_CAVEATS} caveats and {MAX_TOKEN_BYTES} characters")
    return longer


def _first(key: bytes, token_id: str) -> bytes:
    return hmac.digest(key, f"{_VERSION}.{token_id}".encode(), "sha256")


def _next(link: bytes, caveat: str) -> bytes:
    return hmac.digest(link, caveat.encode(), "sha256")


def _encoded(link: bytes) -> str:
    return base64.urlsafe_b64encode(link).decode().rstrip("=")
