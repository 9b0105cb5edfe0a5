"""Tokens that were verified before are known by all their bytes, and not more than some."""

from __future__ import annotations

from execserver.access.verified_tokens import MAX_TOKENS, Verified, VerifiedTokens


def test_the_oldest_leaves_where_there_are_too_many() -> None:
    tokens = VerifiedTokens()
    for number in range(MAX_TOKENS + 1):
        tokens.add(b"%d" % number, Verified("HS256", None, None, {"exp": number}))
    assert tokens.get(b"0") is None
    assert tokens.get(b"1") == Verified("HS256", None, None, {"exp": 1})
    assert tokens.get(b"1 ") is None
    tokens.add(b"1", Verified("HS256", None, None, {"exp": 2}))  # again: nobody leaves for it
    assert tokens.get(b"2") is not None
