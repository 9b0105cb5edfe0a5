"""Tokens in the engine: every node knows a new one at once, and ends what a revoked one opened.

The engine is asked for each request; no node remembers a token, so none can use one too long.

An engine that has never had a token, or has lost them all, says nothing about any: who is refused by it would
end for good, although its token may be there again after a restore.  So the index keeps one member for ever.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Protocol

from execserver.relay.engine.resp import Command, Reply
from execserver.relay.engine.state import text_of, unreadable
from execserver.relay.errors import CannotServe
from execserver.relay.tokens import NOBODY, ROLES, Token, digest_of, token_id_in

CHANNEL = "tokens"
INDEX = "tokens"
_KEPT = "-"  # in the index from the first token on; no id of a token
CONFIRM_MS = 1000  # for a replica to confirm that a token is gone
_FIELDS = ("environment", "role", "digest", "created")
_BATCH = 256


class Asked(Protocol):
    """What answers commands: the relay's engine, or a line of the command line's own."""

    def call(self, *commands: Command) -> list[Reply]:
        """Return the replies.  Raises CannotServe."""


class TokensLost(CannotServe):
    """The engine holds no tokens at all: it was emptied, or is another one."""

    def __init__(self) -> None:
        super().__init__("the engine holds no tokens at all: it was emptied, or is another one")


class EngineTokens:
    """See `tokens.Tokens`."""

    def __init__(self, engine: Asked) -> None:
        self._engine = engine

    def find(self, text: str) -> Token | None:
        """See `tokens.Tokens`.  Raises TokensLost."""
        token_id = token_id_in(text)
        token = self._read([token_id])[0] if token_id else None
        if token_id and token is None:
            self._must_have_tokens()
        same = hmac.compare_digest(token.digest if token else NOBODY, digest_of(text))
        return token if same else None

    def holds(self, token_id: str) -> bool:
        """See `tokens.Tokens`.  Raises TokensLost."""
        return not self.revoked([token_id])

    def revoked(self, token_ids: Iterable[str]) -> set[str]:
        """See `tokens.Tokens`.  Raises TokensLost."""
        asked = list(token_ids)
        gone: set[str] = set()
        for at in range(0, len(asked), _BATCH):
            batch = asked[at : at + _BATCH]
            replies = self._engine.call(*[("EXISTS", f"t:{token_id}") for token_id in batch])
            gone |= {token_id for token_id, there in zip(batch, replies, strict=True) if there == 0}
        if gone:
            self._must_have_tokens()
        return gone

    def add(self, token: Token) -> None:
        """Store a new token."""
        values = (token.environment_id, token.role, token.digest.hex(), token.created)
        pairs = [word for pair in zip(_FIELDS, values, strict=True) for word in pair]
        self._engine.call(("HSET", f"t:{token.id}", *pairs), ("ZADD", INDEX, 0, token.id, 0, _KEPT))

    def all(self) -> list[Token]:
        """Return all tokens."""
        found: list[Token] = []
        at, names = 0, [""]
        while names:
            (ids,) = self._engine.call(("ZRANGE", INDEX, at, at + _BATCH - 1))
            names = list(map(text_of, ids)) if isinstance(ids, list) else []
            found += [token for token in self._read(names) if token is not None] if names else []
            at += _BATCH
        return sorted(found, key=lambda token: token.created)

    def revoke(self, token_id: str) -> tuple[bool, bool]:
        """Remove a token; return whether it was there, and whether a replica has it too, if there is one."""
        removed, _, _, role = self._engine.call(
            ("DEL", f"t:{token_id}"), ("ZREM", INDEX, token_id), ("PUBLISH", CHANNEL, token_id), ("ROLE",)
        )
        if not (isinstance(role, list) and len(role) > 2 and role[2]):
            return removed == 1, True  # no replica could become primary without knowing it
        (confirmed,) = self._engine.call(("WAIT", 1, CONFIRM_MS))
        return removed == 1, confirmed != 0

    def _must_have_tokens(self) -> None:
        if self._engine.call(("EXISTS", INDEX)) == [0]:
            raise TokensLost

    def _read(self, token_ids: list[str]) -> list[Token | None]:
        replies = self._engine.call(*[("HMGET", f"t:{token_id}", *_FIELDS) for token_id in token_ids])
        return [_token(token_id, fields) for token_id, fields in zip(token_ids, replies, strict=True)]


def _token(token_id: str, fields: Reply) -> Token | None:
    if not isinstance(fields, list) or len(fields) != len(_FIELDS):
        raise unreadable(f"t:{token_id}")
    if not any(fields):
        return None
    environment_id, role, digest, created = map(text_of, fields)
    try:
        token = Token(token_id, environment_id, role, bytes.fromhex(digest), created)
    except ValueError:
        raise unreadable(f"t:{token_id}") from None
    if role not in ROLES or len(token.digest) != len(NOBODY):
        raise unreadable(f"t:{token_id}")
    return token
