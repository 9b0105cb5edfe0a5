"""Lets in whoever shows a token of this server's list, with what the token allows; an `Authenticator`.

The list is read again when the file has changed, so a token that was revoked lets nobody in any more, and who
is in already is asked anew with each request.  While the list cannot be read, nobody gets in.  Nothing that
was given is looked up before its MAC has been checked, so neither texts nor times tell which ids exist.
"""

from __future__ import annotations

import logging
import os

from execserver.access.bearer import bearer_token
from execserver.access.identity import NotAdmitted
from execserver.access.tokens import store
from execserver.access.tokens.caveats import BadCaveat, Restrictions, restricted
from execserver.access.tokens.chain import BadToken, genuine, parsed
from execserver.access.tokens.holder import Holder
from execserver.runtime_paths import TOKEN_STORE_FILE

INVALID = "invalid execserver token"
EXPIRED = "expired execserver token"
UNAVAILABLE = "execserver tokens cannot be checked"

_log = logging.getLogger(__name__)


class TokenAuthenticator:
    """The tokens of one list, for a running server."""

    may_wait = True  # for the disk

    def __init__(self, folder: bytes) -> None:
        """Read the list.  Raises TokenStoreError."""
        self._folder = folder
        self._stamp = _stamp(folder)
        self._listed: store.Listed | None = store.read(folder)

    def identify(self, authorization: bytes | None, now: float) -> Holder:
        """Return the holder of a token, with its grant; raise NotAdmitted."""
        # `bearer_token` lets no byte through that is not ASCII.
        text = bearer_token(authorization).decode("ascii")
        try:
            token = parsed(text)
            if not genuine(self._current().key, token):
                raise NotAdmitted(INVALID)
            holder = self.holder(token.id, token.caveats)
        except (BadToken, BadCaveat):
            raise NotAdmitted(INVALID) from None
        if reason := holder.lapsed(now):
            raise NotAdmitted(reason)
        return holder

    def holder(self, token_id: str, caveats: tuple[str, ...]) -> Holder:
        """Return the holder of a token that was found to be genuine before.  Raises BadCaveat."""
        left = restricted(caveats)

        def lapsed(now: float) -> str | None:
            return self._lapsed(token_id, left, now)

        def labelled() -> str | None:
            return self._label(token_id)

        return Holder(_name(token_id, left), left.grant(), lapsed, (token_id, caveats), labelled)

    def _lapsed(self, token_id: str, left: Restrictions, now: float) -> str | None:
        try:
            issued = self._current().tokens.get(token_id)
        except NotAdmitted as refused:
            return refused.text
        if issued is None or issued.revoked is not None:
            return INVALID
        return EXPIRED if left.expired(now) else None

    def _label(self, token_id: str) -> str | None:
        try:
            issued = self._current().tokens.get(token_id)
        except NotAdmitted:
            return None
        return None if issued is None else next(iter(issued.restrictions.labels), "")

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
