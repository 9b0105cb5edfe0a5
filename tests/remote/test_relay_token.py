"""A token of a relay that people host takes the place of an API key, without the rule about its host."""

from __future__ import annotations

from pathlib import Path

from execserver.relay import tokens
from execserver.remote.auth.kinds import ApiKeyAuth


def test_a_relays_token_may_be_sent_to_any_host_and_an_api_key_may_not(tmp_path: Path) -> None:
    _, token = tokens.create(str(tmp_path / "tokens.json"), "box", tokens.EXECUTOR)
    auth = ApiKeyAuth(token, "CODEX_API_KEY")
    assert not auth.is_api_key
    assert auth.headers() == [("authorization", f"Bearer {token}")]
    assert token not in auth.described
    for key in ("sk-proj-0123456789", "esr-", token[:-1], f"{token}x"):
        assert ApiKeyAuth(key, "CODEX_API_KEY").is_api_key
