"""Agent Identity from the token to the signed request, against stand-ins that verify every signature."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from execserver.remote.auth import agent_identity
from execserver.remote.auth.agent_identity import AgentAuth
from execserver.remote.auth.endpoints import AgentEndpoints
from execserver.remote.errors import SignInError
from execserver.remote.http import ApiClient
from tests.remote.agents import NOW, AuthApi, Issuer, b64url, check_assertion, claims
from tests.remote.standin import Asked, StandIn, Told
from tests.remote.test_auth_agent_key import KNOWN

ISSUER = Issuer()


@pytest.fixture
def api() -> Iterator[tuple[AuthApi, StandIn]]:
    """An auth API, and where it listens."""
    answer = AuthApi(ISSUER)
    with StandIn(answer) as server:
        yield answer, server


def sign_in(server: StandIn, token: str, now: float = NOW) -> AgentAuth:
    endpoints = AgentEndpoints(f"{server.url}/backend-api/wham/agent-identities/jwks", f"{server.url}/api")
    return agent_identity.sign_in(token, endpoints, ApiClient({}), lambda: now)


def paths(server: StandIn) -> list[str]:
    return [asked.path for asked in server.asked]


def test_a_checked_token_registers_a_task_and_signs_each_request(api: tuple[AuthApi, StandIn]) -> None:
    _, server = api
    auth = sign_in(server, ISSUER.token(claims()))
    keys, task = server.asked
    assert (keys.method, keys.path) == ("GET", "/backend-api/wham/agent-identities/jwks")
    assert (task.method, task.path) == ("POST", "/api/v1/agent/agent-runtime-1/task/register")
    assert task.body == json.dumps(KNOWN["task_registration_body"], separators=(",", ":")).encode()
    for asked in server.asked:
        assert asked.header("originator") == "codex_cli_rs"
        assert str(asked.header("user-agent")).startswith("codex_cli_rs/")
    assert auth.headers() == [
        ("authorization", KNOWN["authorization_header"]),
        ("chatgpt-account-id", "acct-1"),
    ]
    assert not auth.is_api_key


def test_every_request_has_its_own_time(api: tuple[AuthApi, StandIn]) -> None:
    _, server = api
    times = iter([NOW, NOW, NOW + 1, NOW + 90])
    endpoints = AgentEndpoints(f"{server.url}/jwks", f"{server.url}/api")
    token = ISSUER.token(claims(chatgpt_account_is_fedramp=True))
    auth = agent_identity.sign_in(token, endpoints, ApiClient({}), lambda: next(times))
    first, second = auth.headers(), auth.headers()
    assert check_assertion(first[0][1], "task-1") == "2026-06-22T12:00:01Z"
    assert check_assertion(second[0][1], "task-1") == "2026-06-22T12:01:30Z"
    assert first[1:] == [("chatgpt-account-id", "acct-1"), ("x-openai-fedramp", "true")]


@pytest.mark.parametrize(
    ("reply", "task_id"),
    [
        ({"task_id": "a"}, "a"),
        ({"taskId": "b"}, "b"),
        ({"encrypted_task_id": KNOWN["sealed_task_id"]["encrypted_task_id"]}, "task-sealed-1"),
        ({"encryptedTaskId": KNOWN["sealed_task_id"]["encrypted_task_id"]}, "task-sealed-1"),
    ],
)
def test_the_task_id_comes_in_four_forms(
    api: tuple[AuthApi, StandIn], reply: dict[str, str], task_id: str
) -> None:
    answer, server = api
    answer.reply = reply
    check_assertion(sign_in(server, ISSUER.token(claims())).headers()[0][1], task_id)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ({}, "agent task registration response omitted task id"),
        ({"encrypted_task_id": "!"}, "encrypted task id is not valid base64"),
        ({"encrypted_task_id": "AAAA"}, "failed to decrypt encrypted task id"),
        ([], "failed to decode agent task registration response"),
    ],
)
def test_a_reply_without_a_task_id_is_told(api: tuple[AuthApi, StandIn], reply: object, text: str) -> None:
    answer, server = api
    answer.failures = [Told(200, reply)]
    with pytest.raises(SignInError) as failed:
        sign_in(server, ISSUER.token(claims()))
    assert failed.value.text == text


def test_a_busy_auth_api_is_asked_three_times(api: tuple[AuthApi, StandIn]) -> None:
    answer, server = api
    answer.failures = [Told(503), Told(429)]
    sign_in(server, ISSUER.token(claims()))
    assert len(server.asked) == 1 + 3
    answer.failures = [Told(500), Told(502), Told(503, b"x" * 600)]
    with pytest.raises(SignInError) as failed:
        sign_in(server, ISSUER.token(claims()))
    shown = f"agent task registration failed with status 503 Service Unavailable: {'x' * 512}"
    assert failed.value.text == shown


def test_a_refusal_is_final(api: tuple[AuthApi, StandIn]) -> None:
    answer, server = api
    answer.failures = [Told(403, b" no ")]
    with pytest.raises(SignInError) as failed:
        sign_in(server, ISSUER.token(claims()))
    assert failed.value.text == "agent task registration failed with status 403 Forbidden: no"
    assert len(server.asked) == 2


def test_an_auth_api_that_is_not_there_is_tried_three_times_and_told() -> None:
    with StandIn(lambda asked: Told(200, ISSUER.jwks())) as server:
        endpoints = AgentEndpoints(f"{server.url}/jwks", "http://127.0.0.1:1")
        with pytest.raises(SignInError) as failed:
            agent_identity.sign_in(ISSUER.token(claims()), endpoints, ApiClient({}), lambda: NOW)
    assert failed.value.text == "failed to register agent task"
    assert "Connection refused (os error 111)" in failed.value.cause


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("a.b", "invalid agent identity JWT format"),
        ("a.!.c", "agent identity JWT payload is not valid base64url"),
        (f"a.{b64url(b'1')}.c", "agent identity JWT payload is not valid JSON"),
        (ISSUER.token(claims(email=None)), "agent identity JWT payload is not valid JSON"),
        (
            ISSUER.token(claims(chatgpt_account_is_fedramp="no")),
            "agent identity JWT payload is not valid JSON",
        ),
    ],
)
def test_a_text_that_is_no_token_asks_nobody(api: tuple[AuthApi, StandIn], token: str, text: str) -> None:
    _, server = api
    with pytest.raises(SignInError) as failed:
        sign_in(server, token)
    assert failed.value.text == text
    assert server.asked == []


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (ISSUER.token(claims(), kid="key-2"), "agent identity JWT kid key-2 is not trusted"),
        (ISSUER.token(claims(), kid=None), "agent identity JWT header does not include a kid"),
        (Issuer().token(claims()), "failed to verify agent identity JWT"),
        (ISSUER.token(claims(exp=NOW - 61)), "failed to verify agent identity JWT"),
        (ISSUER.token(claims(), alg="HS256"), "failed to verify agent identity JWT"),
        (
            ISSUER.token(claims(agent_private_key="!")),
            "stored agent identity private key is not valid base64",
        ),
        (
            ISSUER.token(claims(agent_private_key="AAAA")),
            "stored agent identity private key is not valid PKCS#8",
        ),
    ],
)
def test_a_token_that_does_not_hold_registers_nothing(
    api: tuple[AuthApi, StandIn], token: str, text: str
) -> None:
    _, server = api
    with pytest.raises(SignInError) as failed:
        sign_in(server, token)
    assert failed.value.text == text
    assert paths(server) == ["/backend-api/wham/agent-identities/jwks"]


def keys_answer(told: Told) -> str:
    with StandIn(lambda asked: told) as server, pytest.raises(SignInError) as failed:
        sign_in(server, ISSUER.token(claims()))
    return failed.value.text


def test_keys_that_cannot_be_had_are_told() -> None:
    assert keys_answer(Told(500)) == "agent identity JWKS endpoint returned an error"
    assert keys_answer(Told(200, b"{")) == "failed to decode agent identity JWKS"
    assert keys_answer(Told(200, {"keys": 1})) == "failed to decode agent identity JWKS"
    assert keys_answer(Told(302, b"", (("location", "http://127.0.0.1:1/"),))) == (
        "agent identity JWKS endpoint returned an error"
    )


@pytest.mark.parametrize(
    ("base", "jwks", "api"),
    [
        (
            "https://chatgpt.com/backend-api",
            "https://chatgpt.com/backend-api/wham/agent-identities/jwks",
            "https://auth.openai.com/api/accounts",
        ),
        (
            "https://chat.openai.com/codex/",
            "https://chat.openai.com/codex/agent-identities/jwks",
            "https://auth.openai.com/api/accounts",
        ),
        (
            "https://chatgpt-staging.com/backend-api/codex",
            "https://chatgpt-staging.com/backend-api/codex/wham/agent-identities/jwks",
            "https://auth.api.openai.org/api/accounts",
        ),
    ],
)
def test_the_addresses_follow_from_the_base_url(base: str, jwks: str, api: str) -> None:
    assert AgentEndpoints.for_chatgpt(base) == (jwks, api)


@pytest.mark.parametrize("base", ["https://example.com", "http://chatgpt.com", "https://chatgpt.com/x", ""])
def test_other_base_urls_are_refused(base: str) -> None:
    with pytest.raises(SignInError, match="only supports production and staging"):
        AgentEndpoints.for_chatgpt(base)


def test_the_stand_in_does_refuse_a_wrong_signature() -> None:
    answer = AuthApi(ISSUER)
    body = json.dumps({"timestamp": "t", "signature": KNOWN["task_registration_body"]["signature"]}).encode()
    with pytest.raises(AssertionError):
        answer(Asked("POST", "/api/v1/agent/agent-runtime-1/task/register", [], body))
