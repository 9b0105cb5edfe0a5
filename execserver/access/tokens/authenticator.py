"""Lets in whoever shows a token of this server's list, with what the token allows; an `Authenticator`.

The list is read again when the file has changed, so a token that was revoked lets nobody in any more.  While
the list cannot be read, nobody gets in.  Nothing that was given is looked up before its MAC has been checked,
so neither texts nor times tell which ids exist.
"""

from __future__ import annotations

import logging
import os
import re

from execserver.access.identity import Identity, NotAdmitted
from execserver.access.tokens import store
from execserver.access.tokens.caveats import BadCaveat, Restrictions, restricted
from execserver.access.tokens.chain import MAX_TOKEN_BYTES, BadToken, genuine, parsed
from execserver.runtime_paths import TOKEN_STORE_FILE

MISSING = "missing websocket bearer token"
MALFORMED = "invalid authorization header"
INVALID = "invalid execserver token"
EXPIRED = "expired execserver token"
UNAVAILABLE = "execserver tokens cannot be checked"

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+) *")
_log = logging.getLogger(__name__)


class TokenAuthenticator:
    """The tokens of one list, for a running server."""

    def __init__(self, folder: bytes) -> None:
        """Read the list.  Raises TokenStoreError."""
        self._folder = folder
        self._stamp = _stamp(folder)
        self._listed: store.Listed | None = store.read(folder)

    def identify(self, authorization: bytes | None, now: float) -> Identity:
        """Return the holder of a token, with its grant; raise NotAdmitted."""
        text = _given(authorization)
        listed = self._current()
        try:
            token = parsed(text)
            if not genuine(listed.key, token):
                raise NotAdmitted(INVALID)
            issued = listed.tokens.get(token.id)
            if issued is None or issued.revoked is not None:
                raise NotAdmitted(INVALID)
            left = restricted(token.caveats)
        except (BadToken, BadCaveat):
            raise NotAdmitted(INVALID) from None
        if left.expired(now):
            raise NotAdmitted(EXPIRED)
        return Identity("token", _name(token.id, left), left.grant())

    def _current(self) -> store.Listed:
        stamp = _stamp(self._folder)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._listed = store.read(self._folder)
            except store.TokenStoreError as error:
                _log.error("no token is accepted: %s", error)
                self._listed = None
        if self._listed is None:
            raise NotAdmitted(UNAVAILABLE)
        return self._listed


def _given(authorization: bytes | None) -> str:
    if authorization is None:
        raise NotAdmitted(MISSING)
    if len(authorization) > 2 * MAX_TOKEN_BYTES:
        raise NotAdmitted(INVALID)
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise NotAdmitted(MALFORMED)
    return found[1].decode("ascii")


def _name(token_id: str, left: Restrictions) -> str:
    """Return id and labels: a holder can add a label, and still not take another token's name."""
    return " ".join([token_id, *(["/".join(left.labels)] if left.labels else [])])


def _stamp(folder: bytes) -> tuple[int, int, int, int, int] | None:
    """Return what changes with the file, or with who may come to it."""
    try:
        facts = os.stat(folder + b"/" + TOKEN_STORE_FILE)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_mode
