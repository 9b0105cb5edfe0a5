"""Tokens in an engine: who is known, who is not any more, and what stands there wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from execserver.relay.engine.client import EngineRefused
from execserver.relay.engine.tokens import EngineTokens, TokensLost
from execserver.relay.tokens import BOTH, HARNESS, new_token
from tests.support.engine_process import EngineProcess


@pytest.fixture
def tokens(process: EngineProcess) -> Iterator[EngineTokens]:
    process.ask("FLUSHALL")
    engine = process.connected()
    yield EngineTokens(engine)
    engine.close()


def test_a_token_is_known_by_its_whole_text(tokens: EngineTokens) -> None:
    token, text = new_token("box", HARNESS)
    tokens.add(token)
    assert tokens.find(text) == token
    assert tokens.find(text[:-1] + ("A" if text[-1] != "A" else "B")) is None
    assert tokens.find(f"esr-{'0' * 12}-{text.split('-', 2)[2]}") is None
    assert tokens.find("esr-*-" + "x" * 43) is None
    assert tokens.find("") is None


def test_no_secret_stands_in_the_engine(tokens: EngineTokens, process: EngineProcess) -> None:
    token, text = new_token("box", HARNESS)
    tokens.add(token)
    stored = process.ask("HGETALL", f"t:{token.id}")
    assert token.digest.hex().encode() in stored
    assert text.split("-", 2)[2].encode() not in stored


def test_revoked_tokens_are_found_among_many(tokens: EngineTokens) -> None:
    made = [new_token(f"box-{number}", BOTH)[0] for number in range(300)]
    for token in made:
        tokens.add(token)
    assert {token.id for token in tokens.all()} == {token.id for token in made}
    gone = made[::50]
    assert [tokens.revoke(token.id) for token in gone] == [(True, True)] * 6
    assert tokens.revoked({token.id for token in made}) == {token.id for token in gone}
    assert tokens.holds(made[1].id)
    assert not tokens.holds(gone[0].id)
    assert tokens.revoke(gone[0].id) == (False, True)
    assert len(tokens.all()) == 294


@pytest.mark.parametrize(
    ("field", "value"), [("digest", "xyz"), ("digest", "00"), ("role", "admin"), ("role", "")]
)
def test_what_no_relay_wrote_is_an_error_and_lets_nobody_in(
    tokens: EngineTokens, process: EngineProcess, field: str, value: str
) -> None:
    token, text = new_token("box", HARNESS)
    tokens.add(token)
    process.ask("HSET", f"t:{token.id}", field, value)
    with pytest.raises(EngineRefused, match="unreadable"):
        tokens.find(text)


def test_an_engine_that_lost_all_tokens_says_nothing_about_any(
    tokens: EngineTokens, process: EngineProcess
) -> None:
    token, text = new_token("box", BOTH)
    tokens.add(token)
    process.ask("FLUSHALL")
    for ask in (
        lambda: tokens.find(text),
        lambda: tokens.holds(token.id),
        lambda: tokens.revoked([token.id]),
    ):
        with pytest.raises(TokensLost):
            ask()
    assert tokens.find("no token of a relay") is None
    tokens.add(token)
    assert tokens.find(text) == token


def test_the_last_token_can_be_revoked(tokens: EngineTokens) -> None:
    token, text = new_token("box", BOTH)
    tokens.add(token)
    tokens.revoke(token.id)
    assert tokens.find(text) is None
    assert not tokens.holds(token.id)
    assert tokens.all() == []
