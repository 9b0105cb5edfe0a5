"""The registry calls over real sockets: exact answers, refusals, who may do what."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pytest

from tests.support.relay_process import ENVIRONMENT, RelayProcess, key_object
from tests.support.waiting import wait_until

PROFILE = "noise_hybrid_ik_v1"
REGISTER = {"security_profile": PROFILE, "executor_public_key": key_object(1)}
CONNECT = {"harness_public_key": key_object(2)}


def test_a_whole_round_of_calls(relay: RelayProcess, token: str) -> None:
    status, registered = relay.call(ENVIRONMENT, "register", REGISTER, token)
    assert status == 200
    assert list(registered) == ["environment_id", "url", "security_profile", "executor_registration_id"]
    assert registered["environment_id"] == ENVIRONMENT
    assert registered["security_profile"] == PROFILE
    assert registered["url"].startswith(f"ws://127.0.0.1:{relay.port}/rendezvous/{ENVIRONMENT}?token=")

    with relay.executor(token, seed=1) as _:
        status, granted = relay.call(ENVIRONMENT, "connect", CONNECT, token)
        assert status == 200
        assert list(granted) == [
            *("environment_id", "url", "security_profile", "executor_registration_id"),
            *("executor_public_key", "harness_key_authorization"),
        ]
        assert granted["executor_public_key"] == key_object(1)
        assert granted["executor_registration_id"] != registered["executor_registration_id"]
        assert 32 <= len(granted["harness_key_authorization"]) <= 4096

        question = {
            "executor_registration_id": granted["executor_registration_id"],
            "harness_public_key": key_object(2),
            "harness_key_authorization": granted["harness_key_authorization"],
        }
        assert relay.call(ENVIRONMENT, "validate", question, token) == (200, {"valid": True})
        assert relay.call(ENVIRONMENT, "validate", question, token) == (200, {"valid": False})


@pytest.mark.parametrize(
    "change",
    [
        {"executor_registration_id": "reg_other"},
        {"harness_public_key": key_object(3)},
        {"harness_key_authorization": "guessed"},
    ],
)
def test_validate_refuses_what_was_not_granted_so(
    relay: RelayProcess, token: str, change: dict[str, object]
) -> None:
    with relay.executor(token):
        granted = relay.grant(token, 2)
        question = {
            "executor_registration_id": granted["executor_registration_id"],
            "harness_public_key": key_object(2),
            "harness_key_authorization": granted["harness_key_authorization"],
            **change,
        }
        assert relay.call(ENVIRONMENT, "validate", question, token) == (200, {"valid": False})


def test_an_authorization_is_worthless_in_another_environment(relay: RelayProcess, token: str) -> None:
    other = relay.token("box-2")
    with relay.executor(token), relay.executor(other, environment_id="box-2"):
        granted = relay.grant(token, 2)
        question = {
            "executor_registration_id": granted["executor_registration_id"],
            "harness_public_key": key_object(2),
            "harness_key_authorization": granted["harness_key_authorization"],
        }
        assert relay.call("box-2", "validate", question, other) == (200, {"valid": False})


def test_without_a_token_nothing_is_told(relay: RelayProcess) -> None:
    for given in (None, "", "wrong", "esr-0123456789ab-" + "A" * 43):
        status, answer = relay.call(ENVIRONMENT, "register", REGISTER, given)
        assert status == 401
        assert answer == {
            "error": {
                "code": "unauthorized",
                "message": "a valid token of this relay is needed, as bearer token",
            }
        }
    _, headers, _ = relay.request("POST", f"/cloud/environment/{ENVIRONMENT}/register", b"{}")
    assert headers["www-authenticate"] == "Bearer"


def test_a_token_is_for_one_environment_and_its_role(relay: RelayProcess) -> None:
    executor, harness = relay.token(role="executor"), relay.token(role="harness")
    refused = (
        403,
        {"error": {"code": "forbidden", "message": "this token is not for this environment and call"}},
    )
    assert relay.call("another", "register", REGISTER, executor) == refused
    assert relay.call(ENVIRONMENT, "register", REGISTER, harness) == refused
    assert relay.call(ENVIRONMENT, "validate", {}, harness) == refused
    assert relay.call(ENVIRONMENT, "connect", CONNECT, executor) == refused
    with relay.executor(executor), relay.harness(harness):
        pass


def test_connecting_where_nobody_is(relay: RelayProcess, token: str) -> None:
    status, answer = relay.call(ENVIRONMENT, "connect", CONNECT, token)
    assert (status, answer["error"]["code"]) == (404, "environment_not_registered")
    relay.register(token)
    status, answer = relay.call(ENVIRONMENT, "connect", CONNECT, token)
    assert (status, answer["error"]["code"]) == (503, "executor_offline")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("register", [], "the body is not a JSON object"),
        ("register", {}, "security_profile must be noise_hybrid_ik_v1"),
        (
            "register",
            {"security_profile": PROFILE},
            "executor_public_key: a key is an object",
        ),
        (
            "register",
            {**REGISTER, "executor_public_key": {**key_object(), "more": 1}},
            "executor_public_key: a key has the members suite, x25519_public_key, mlkem768_public_key and no"
            " others",
        ),
        (
            "connect",
            {"harness_public_key": {**key_object(), "x25519_public_key": "AAAA"}},
            "harness_public_key: x25519_public_key must have 32 bytes",
        ),
        (
            "connect",
            {"harness_public_key": {**key_object(), "x25519_public_key": "?"}},
            "harness_public_key: x25519_public_key must be padded base64 of the standard alphabet",
        ),
        (
            "validate",
            {"harness_public_key": key_object()},
            "executor_registration_id must be a text of 1 to 256 characters",
        ),
        (
            "validate",
            {
                "harness_public_key": key_object(),
                "executor_registration_id": "r",
                "harness_key_authorization": "a" * 4097,
            },
            "harness_key_authorization must be a text of 1 to 4096 characters",
        ),
    ],
)
def test_bodies_that_are_no_call(
    relay: RelayProcess, token: str, name: str, body: object, message: str
) -> None:
    expected = {"error": {"code": "invalid_request", "message": message}}
    assert relay.call(ENVIRONMENT, name, body, token) == (400, expected)


def test_a_body_that_is_no_json(relay: RelayProcess, token: str) -> None:
    for body in (b"", b"{", b"[" * 5000, b"\xff"):
        headers = {"authorization": f"Bearer {token}"}
        status, _, answer = relay.request("POST", f"/cloud/environment/{ENVIRONMENT}/register", body, headers)
        assert (status, json.loads(answer)["error"]["message"]) == (400, "the body is not JSON")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/cloud/environment/a/b/register", 404),
        ("POST", "/cloud/environment//register", 404),
        ("POST", "/cloud/environment/%61/register", 404),
        ("POST", f"/cloud/environment/{'a' * 129}/register", 404),
        ("GET", "/cloud/environment/a/register", 405),
        ("DELETE", "/cloud/environment/a/connect", 405),
        ("POST", "/readyz", 405),
        ("GET", "/readyz", 200),
        ("HEAD", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/rendezvous/a", 400),
    ],
)
def test_paths_and_methods(relay: RelayProcess, method: str, path: str, status: int) -> None:
    assert relay.request(method, path)[0] == status


def test_web_pages_are_refused(relay: RelayProcess, token: str) -> None:
    status, answer = relay.call(ENVIRONMENT, "register", REGISTER, token, origin="https://example.org")
    assert (status, answer["error"]["code"]) == (403, "forbidden")


def test_the_url_leads_to_where_the_caller_came_in(relay: RelayProcess, token: str) -> None:
    _, answer = relay.call(ENVIRONMENT, "register", REGISTER, token, host="relay.example.org:8443")
    assert urlsplit(answer["url"]).netloc == "relay.example.org:8443"
    _, answer = relay.call(ENVIRONMENT, "register", REGISTER, token, host="a b/../c")
    assert urlsplit(answer["url"]).netloc == f"127.0.0.1:{relay.port}"


def test_a_public_url_is_told_whatever_was_asked() -> None:
    with RelayProcess("--public-url", "https://relay.example.org/codex/") as relay:
        answer = relay.register(relay.token())
        assert answer["url"].startswith(f"wss://relay.example.org/codex/rendezvous/{ENVIRONMENT}?token=x-")


def test_calls_are_limited_per_environment() -> None:
    with RelayProcess(limits={"calls_per_s": 1}) as relay:
        one, other = relay.token(), relay.token("box-2")
        statuses = [relay.call(ENVIRONMENT, "validate", {}, one)[0] for _ in range(4)]
        assert statuses == [400] * 4
        # On a busy machine some further calls may be so late that they are within the rate.
        wait_until(lambda: relay.call(ENVIRONMENT, "validate", {}, one)[0] == 429)
        assert relay.call("box-2", "validate", {}, other)[0] == 400
