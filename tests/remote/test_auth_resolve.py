"""Which credential is used: the order of the sources, their conditions, what is told when none will do."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.remote.auth.chatgpt import ChatGptAuth
from execserver.remote.auth.endpoints import AgentEndpoints, Endpoints
from execserver.remote.auth.resolve import (
    IN_KEYRING,
    NEEDS_FLAG,
    NOTHING_USABLE,
    TOKEN_REQUIRED,
    resolve_auth,
)
from tests.remote.agents import AuthApi, Issuer, check_assertion, claims
from tests.remote.auth_scene import FEDRAMP, NOW, Scene, jwt
from tests.remote.standin import StandIn, Told


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A fresh scene."""
    scene = Scene(tmp_path)
    yield scene
    scene.server.stop()


def test_the_key_of_the_environment_comes_first(scene: Scene) -> None:
    scene.environ = {"CODEX_API_KEY": "  sk-1 \n", "CODEX_ACCESS_TOKEN": "at-1", "OPENAI_API_KEY": "sk-2"}
    scene.write(OPENAI_API_KEY="sk-3")
    auth = scene.resolve()
    assert auth.is_api_key
    assert auth.headers() == [("authorization", "Bearer sk-1")]
    assert "sk-1" not in auth.described
    assert list(auth.secrets) == ["sk-1"]


def test_the_general_key_of_the_environment_is_not_read(scene: Scene) -> None:
    scene.environ = {"OPENAI_API_KEY": "sk-2", "CODEX_API_KEY": "  "}
    assert scene.refused().text == NOTHING_USABLE


def test_a_personal_access_token_is_looked_up_first(scene: Scene) -> None:
    scene.environ = {"CODEX_ACCESS_TOKEN": " at-1 "}
    scene.write(OPENAI_API_KEY="sk-3")
    auth = scene.resolve()
    assert not auth.is_api_key
    assert auth.headers() == [
        ("authorization", "Bearer at-1"),
        ("chatgpt-account-id", "acct-9"),
        ("x-openai-fedramp", "true"),
    ]
    (asked,) = scene.server.asked
    assert (asked.method, asked.header("authorization")) == ("GET", "Bearer at-1")
    assert asked.header("originator") == "codex_cli_rs"


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        (
            Told(401, b"at-1 is bad"),
            "personal access token metadata request failed with status 401 Unauthorized",
        ),
        (Told(200, b"{}"), "failed to decode personal access token metadata"),
    ],
)
def test_a_personal_access_token_that_fails_is_nothing_usable(scene: Scene, told: Told, cause: str) -> None:
    scene.environ = {"CODEX_ACCESS_TOKEN": "at-1"}
    scene.api.whoami = told
    refused = scene.refused()
    assert refused.text == NOTHING_USABLE
    assert refused.cause.startswith(cause)
    assert "at-1" not in refused.report


def test_an_agent_identity_needs_the_flag(scene: Scene) -> None:
    scene.environ = {"CODEX_ACCESS_TOKEN": jwt({"agent_runtime_id": "a"})}
    assert scene.refused().text == NEEDS_FLAG
    scene.environ = {}
    scene.write(auth_mode="agentIdentity", agent_identity="x")
    assert scene.refused().text == NEEDS_FLAG


def test_a_token_of_no_known_kind_is_nothing_usable(scene: Scene) -> None:
    scene.write(OPENAI_API_KEY="sk-3")
    for token in ("nonsense", "a.b.c", jwt({})):
        scene.environ = {"CODEX_ACCESS_TOKEN": token}
        assert scene.refused().text == NOTHING_USABLE


def test_the_flag_ignores_all_other_sources(scene: Scene) -> None:
    scene.environ = {"CODEX_API_KEY": "sk-1", "CODEX_ACCESS_TOKEN": "  "}
    assert scene.refused(flag=True).text == TOKEN_REQUIRED
    scene.environ["CODEX_ACCESS_TOKEN"] = "x.y.z"
    scene.config = {"chatgpt_base_url": "https://example.com"}
    assert "production and staging" in scene.refused(flag=True).text


def test_the_flag_signs_in_as_an_agent(tmp_path: Path) -> None:
    issuer = Issuer()
    with StandIn(AuthApi(issuer)) as server:
        addresses = AgentEndpoints(f"{server.url}/jwks", f"{server.url}/api")
        environ = {"CODEX_ACCESS_TOKEN": issuer.token(claims(exp=9e9)), "CODEX_API_KEY": "sk-1"}
        auth = resolve_auth(environ, str(tmp_path), {}, True, agent_endpoints=addresses)
    check_assertion(auth.headers()[0][1], "task-1")


@pytest.mark.parametrize(
    "document",
    [
        {"auth_mode": "apikey", "OPENAI_API_KEY": "sk-3"},
        {"OPENAI_API_KEY": "sk-3", "tokens": {"access_token": "a"}},
    ],
)
def test_a_stored_key_is_used(scene: Scene, document: dict[str, Any]) -> None:
    scene.write(**document)
    auth = scene.resolve()
    assert (auth.is_api_key, auth.headers()) == (True, [("authorization", "Bearer sk-3")])


def test_stored_tokens_are_used_with_their_account(scene: Scene) -> None:
    access = jwt({"exp": 9e9})
    tokens = {"id_token": FEDRAMP, "access_token": access, "refresh_token": "r", "account_id": "acct-1"}
    scene.write(
        auth_mode="chatgpt", OPENAI_API_KEY="sk-3", tokens=tokens, last_refresh="2026-06-22T12:00:00Z"
    )
    auth = scene.resolve()
    assert not auth.is_api_key
    assert auth.headers() == [
        ("authorization", f"Bearer {access}"),
        ("chatgpt-account-id", "acct-1"),
        ("x-openai-fedramp", "true"),
    ]
    assert scene.server.asked == []


def test_the_account_is_not_taken_from_the_id_token(scene: Scene) -> None:
    id_token = jwt({"https://api.openai.com/auth": {"chatgpt_account_id": "acct-7"}})
    tokens = {"id_token": id_token, "access_token": jwt({"exp": 9e9}), "refresh_token": "r"}
    scene.write(tokens=tokens, last_refresh="2026-06-22T12:00:00Z")
    assert [name for name, _ in scene.headers()] == ["authorization"]


def test_tokens_without_a_time_of_refresh_are_not_sent(scene: Scene) -> None:
    scene.write(tokens={"access_token": jwt({"exp": 9e9}), "account_id": "acct-1"})
    assert scene.headers() == [("chatgpt-account-id", "acct-1")]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"auth_mode": "chatgpt", "tokens": None},
        {"auth_mode": "apikey"},
        {"auth_mode": "bedrockApiKey", "bedrock_api_key": "b"},
        {"bedrock_api_key": "b", "OPENAI_API_KEY": "sk-3"},
        {"auth_mode": "personalAccessToken"},
        {"auth_mode": "of tomorrow"},
    ],
)
def test_other_stored_state_is_nothing_usable(scene: Scene, document: dict[str, Any]) -> None:
    scene.write(**document)
    assert scene.refused().text == NOTHING_USABLE


def test_a_stored_personal_access_token_is_looked_up(scene: Scene) -> None:
    scene.write(personal_access_token="at-5", OPENAI_API_KEY="sk-3")
    assert scene.headers()[0] == ("authorization", "Bearer at-5")


def test_a_missing_or_broken_file_is_told(scene: Scene) -> None:
    assert scene.refused().report == NOTHING_USABLE
    scene.config = {"cli_auth_credentials_store": "keyring"}
    assert scene.refused().cause == IN_KEYRING
    path = scene.write()
    path.write_text('{"OPENAI_API_KEY": "sk-secret"')
    refused = scene.refused()
    assert refused.text == NOTHING_USABLE
    assert refused.cause == f"{path} is not JSON at line 1"
    path.write_text("[]")
    assert scene.refused().cause == f"{path} is not a JSON object"


def stored(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def chatgpt(scene: Scene, access: str, last_refresh: str = "2026-06-22T12:00:00Z", **more: object) -> Path:
    tokens = {"id_token": FEDRAMP, "access_token": access, "refresh_token": "r1", "account_id": "acct-1"}
    return scene.write(
        auth_mode="chatgpt", OPENAI_API_KEY=None, tokens=tokens, last_refresh=last_refresh, **more
    )


def test_an_expiring_token_is_refreshed_and_stored(scene: Scene) -> None:
    path = chatgpt(scene, jwt({"exp": 1}), extra={"kept": 1})
    before = path.stat().st_ino
    assert scene.headers() == [("authorization", "Bearer new"), ("chatgpt-account-id", "acct-1")]
    (asked,) = scene.server.asked
    assert asked.path == "/token"
    assert asked.body == b'{"client_id":"client-1","grant_type":"refresh_token","refresh_token":"r1"}'
    document = stored(path)
    assert document["tokens"] == {
        "id_token": jwt({}),
        "access_token": "new",
        "refresh_token": "r2",
        "account_id": "acct-1",
    }
    assert document["extra"] == {"kept": 1}
    assert document["last_refresh"] > "2026-06-22"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != before
    assert os.listdir(scene.home) == ["auth.json"]


def test_a_token_without_expiry_is_refreshed_after_eight_days(scene: Scene) -> None:
    chatgpt(scene, "opaque", "2026-01-01T00:00:00.123456789Z")
    assert scene.headers()[0] == ("authorization", "Bearer new")


@pytest.mark.parametrize("seconds", [299, 300, 301])
def test_five_minutes_before_its_end_a_token_is_stale(scene: Scene, seconds: int) -> None:
    chatgpt(scene, jwt({"exp": NOW + seconds}))
    auth = scene.resolve()
    assert isinstance(auth, ChatGptAuth)
    auth._clock = lambda: NOW
    assert (auth.headers()[0][1] == "Bearer new") is (seconds <= 300)


def test_a_token_that_expires_later_is_refreshed_then(scene: Scene) -> None:
    access = jwt({"exp": NOW + 3600})
    chatgpt(scene, access)
    auth = scene.resolve()
    assert isinstance(auth, ChatGptAuth)
    times = [NOW]
    auth._clock = lambda: times[0]
    assert auth.headers()[0][1] == f"Bearer {access}"
    times[0] += 3600
    assert auth.headers()[0][1] == "Bearer new"


def test_what_another_program_refreshed_is_taken(scene: Scene) -> None:
    chatgpt(scene, jwt({"exp": 1}))
    auth = scene.resolve()
    fresh = jwt({"exp": 9e9})
    chatgpt(scene, fresh)
    assert auth.headers()[0][1] == f"Bearer {fresh}"
    assert scene.server.asked == []


def test_a_refresh_that_fails_keeps_the_old_token_and_waits_a_while(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    old = jwt({"exp": 1})
    path = chatgpt(scene, old)
    before = path.read_bytes()
    scene.api.refresh = Told(401, {"error": "r1 and " + old})
    auth = scene.resolve()
    assert auth.headers()[0][1] == f"Bearer {old}"
    assert auth.headers()[0][1] == f"Bearer {old}"
    assert len(scene.server.asked) == 1
    assert path.read_bytes() == before
    assert "run `codex login` again" in caplog.text
    assert old not in caplog.text


def test_tokens_from_elsewhere_are_never_refreshed(scene: Scene) -> None:
    tokens = {"id_token": FEDRAMP, "access_token": jwt({"exp": 1}), "refresh_token": "r1"}
    scene.write(auth_mode="chatgptAuthTokens", tokens=tokens, last_refresh="2026-01-01T00:00:00Z")
    assert scene.headers()[0][1] == f"Bearer {tokens['access_token']}"
    assert scene.server.asked == []


def test_tokens_that_cannot_be_stored_are_used_all_the_same(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chatgpt(scene, jwt({"exp": 1}))

    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fails)
    assert scene.headers()[0] == ("authorization", "Bearer new")
    assert stored(path)["tokens"]["refresh_token"] == "r1"
    assert os.listdir(scene.home) == ["auth.json"]
    assert "No space left" in caplog.text


def test_a_link_is_followed_when_the_file_is_rewritten(scene: Scene, tmp_path: Path) -> None:
    path = chatgpt(scene, jwt({"exp": 1}))
    target = tmp_path / "real.json"
    path.rename(target)
    path.symlink_to(target)
    assert scene.headers()[0] == ("authorization", "Bearer new")
    assert path.is_symlink()
    assert stored(target)["tokens"]["access_token"] == "new"


def test_the_addresses_follow_the_reference_variables() -> None:
    assert Endpoints.from_environment({}) == (
        "https://auth.openai.com/api/accounts",
        "https://auth.openai.com/oauth/token",
        "app_EMoamEEZ73f0CkXaXp7hrann",
    )
    given = {
        "CODEX_AUTHAPI_BASE_URL": "http://a/",
        "CODEX_REFRESH_TOKEN_URL_OVERRIDE": "http://t",
        "CODEX_APP_SERVER_LOGIN_CLIENT_ID": "c",
    }
    assert Endpoints.from_environment(given) == ("http://a", "http://t", "c")
