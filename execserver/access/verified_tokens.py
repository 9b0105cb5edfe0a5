"""Tokens whose signature was found good before: a client that connects again shows the same one.

Pure.  Only what was verified comes in, so nobody fills this without valid tokens; the oldest leaves where
there are too many.  Kept is a digest of the whole token, what it was verified with, and its claims: times,
issuer and audience are checked anew each time.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

MAX_TOKENS = 256


class Verified(NamedTuple):
    """One token: how it names its key, the key that verified it, and its claims, which nobody changes."""

    algorithm: str
    kid: str | None
    key: object
    claims: dict[str, object]


class VerifiedTokens:
    """The tokens that one authenticator has verified lately."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Verified] = {}

    def get(self, token: bytes) -> Verified | None:
        """Return what is known of a token, byte for byte."""
        return self._known.get(_digest(token))

    def add(self, token: bytes, verified: Verified) -> None:
        """Keep a token whose signature has been found good."""
        digest = _digest(token)
        self._known.pop(digest, None)
        while len(self._known) >= MAX_TOKENS:
            del self._known[next(iter(self._known))]
        self._known[digest] = verified


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
