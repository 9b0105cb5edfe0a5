"""The registry's API: what is asked, and every check and text of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from execserver.remote import registry as registry_module
from execserver.remote.answers import registry_environment
from execserver.remote.errors import RegistryError, RemoteError, SignInError
from execserver.remote.http import ApiClient
from execserver.remote.registry import (
    AuthenticationRejected,
    RegistryClient,
    Rejected,
)
from execserver.remote.registry_answers import Registration, TakenOver
from execserver.wire.noise import REJECTED
from execserver.wire.noise_keys import SECURITY_PROFILE, PublicKeys, StaticKeys
from tests.remote.standin import Asked, StandIn, Told
from tests.support.certificates import make_authority
from tests.support.transcript import FOLDER
from tests.support.waiting import wait_until

KEY = StaticKeys.generate().public
REGISTERED = {
    "environment_id": "env-1",
    "url": "ws://127.0.0.1:9/x?sig=1",
    "security_profile": SECURITY_PROFILE,
    "executor_registration_id": "reg-1",
}
CONNECTED = {**REGISTERED, "executor_public_key": KEY.to_json(), "harness_key_authorization": "auth-1"}
DEEP = b'{"valid":true,"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NOT_UTF_8 = b'{"valid":true,"environment_id":"\xff","\xff":1}'
PROTOCOL_ERROR = "exec-server protocol error: environment registry returned "


class Registry:
    """One stand-in, and the client of its only environment."""

    def __init__(self, environ: dict[str, str] | None = None, certificate: str | None = None) -> None:
        self.told = Told(200, REGISTERED)
        self.server = StandIn(lambda asked: self.told, certificate)
        self.signatures = iter(range(100))
        self.client = RegistryClient(
            self.server.url, "env-1", self._sign, ApiClient(registry_environment(environ or {}))
        )

    def _sign(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {next(self.signatures)}"), ("chatgpt-account-id", "acct-1")]

    @property
    def asked(self) -> Asked:
        """The only request so far."""
        (asked,) = self.server.asked
        return asked

    def fails(self, told: Told, call: str = "register") -> RemoteError:
        """Return the error that an answer becomes."""
        self.told = told
        with pytest.raises(RemoteError) as failed:
            getattr(self.client, call)(KEY)
        return failed.value

    def validate(self, registration_id: str, key: PublicKeys, authorization: str, stream_id: str) -> None:
        """Ask whether a harness may connect, and wait."""
        question = self.client.ask(registration_id, key, authorization, stream_id)
        try:
            question.wait()
        finally:
            question.close()

    def rejects(self, told: Told) -> str:
        """Return why `validate` rejects."""
        self.told = told
        with pytest.raises(Rejected) as rejected:
            self.validate("reg-1", KEY, "auth-1", "stream-1")
        return str(rejected.value)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry that says yes."""
    registry = Registry()
    yield registry
    registry.server.stop()


def test_registering_sends_exactly_this(registry: Registry) -> None:
    assert registry.client.register(KEY) == Registration("env-1", REGISTERED["url"], "reg-1")
    asked = registry.asked
    assert (asked.method, asked.path) == ("POST", "/cloud/environment/env-1/register")
    assert [name for name, _ in asked.headers] == [
        "authorization",
        "chatgpt-account-id",
        "content-type",
        "accept",
        "host",
        "content-length",
    ]
    assert asked.header("content-type") == "application/json"
    assert list(asked.json) == ["security_profile", "executor_public_key"]
    assert asked.json == {"security_profile": SECURITY_PROFILE, "executor_public_key": KEY.to_json()}


def test_connecting_sends_the_key_and_returns_the_bundle(registry: Registry) -> None:
    registry.told = Told(200, {**CONNECTED, "more": 1})
    bundle = registry.client.connect(KEY)
    assert registry.asked.path == "/cloud/environment/env-1/connect"
    assert registry.asked.json == {"harness_public_key": KEY.to_json()}
    assert bundle == ("env-1", REGISTERED["url"], "reg-1", KEY, "auth-1")


def test_validating_asks_with_a_new_signature(registry: Registry) -> None:
    registry.told = Told(200, {"valid": True})
    registry.validate("reg-1", KEY, "auth-1", "stream-1")
    registry.validate("reg-1", KEY, "auth-1", "ström\r\n")
    first, second = registry.server.asked
    assert first.path == "/cloud/environment/env-1/validate"
    assert list(first.json) == ["executor_registration_id", "harness_public_key", "harness_key_authorization"]
    assert first.json["executor_registration_id"] == "reg-1"
    assert first.json["harness_key_authorization"] == "auth-1"
    assert (first.header("authorization"), second.header("authorization")) == ("Bearer 0", "Bearer 1")
    assert (first.header("x-codex-noise-stream-id"), second.header("x-codex-noise-stream-id")) == (
        "stream-1",
        "-",
    )


@pytest.mark.parametrize(("status", "is_final"), [(401, True), (403, False), (404, False), (500, False)])
def test_only_401_says_that_the_harness_need_not_come_again(
    registry: Registry, status: int, is_final: bool
) -> None:
    registry.told = Told(status, {})
    with pytest.raises(Rejected) as rejected:
        registry.validate("reg-1", KEY, "auth-1", "stream-1")
    assert isinstance(rejected.value, AuthenticationRejected) is is_final


def test_where_the_headers_are_there_the_question_is_sent_before_anybody_waits(registry: Registry) -> None:
    client = ApiClient({}, keeps=True)
    asking = RegistryClient(registry.server.url, "env-1", list, client, headers_may_wait=False)
    asking.register(KEY)
    registry.told = Told(200, {"valid": True})
    question = asking.ask("reg-1", KEY, "auth-1", "stream-1")
    wait_until(lambda: len(registry.server.asked) == 2, pause=gevent.sleep)
    question.wait()
    question.close()
    client.close()


@pytest.mark.parametrize("may_wait", [True, False])
def test_headers_that_cannot_be_had_refuse_the_harness(registry: Registry, *, may_wait: bool) -> None:
    def expired() -> list[tuple[str, str]]:
        raise SignInError("the credential is expired")

    asking = RegistryClient(registry.server.url, "env-1", expired, ApiClient({}), headers_may_wait=may_wait)
    question = asking.ask("reg-1", KEY, "auth-1", "stream-1")
    with pytest.raises(Rejected, match="could not be asked: the credential is expired"):
        question.wait()
    question.close()
    assert registry.server.asked == []


def verdict(registry: Registry, status: int, body: object) -> tuple[str, str]:
    """Return which frame a harness gets after this answer of the registry, and its payload."""
    registry.told = Told(status, body)
    try:
        registry.validate("reg-1", KEY, "auth-1", "stream-1")
    except AuthenticationRejected:
        return "handshake", REJECTED.decode()
    except Rejected:
        return "reset", ""
    return "handshake", ""


def test_every_recorded_answer_is_understood_alike(registry: Registry) -> None:
    lines = (FOLDER / "newest/54-noise-rejection.jsonl").read_text().splitlines()
    cases = [case for case in (json.loads(line)["msg"] for line in lines) if "registry_validate" in case]
    assert len(cases) == 7
    for case in cases:
        told = case["registry_validate"]
        wanted = (case["frame_to_harness"], case.get("decrypted_payload", ""))
        assert verdict(registry, told["status"], told["body"]) == wanted


@pytest.mark.parametrize("status", [200, 201, 299])
def test_any_2xx_is_success(registry: Registry, status: int) -> None:
    registry.told = Told(status, REGISTERED)
    assert registry.client.register(KEY).registration_id == "reg-1"


def test_another_environment_or_profile_is_refused(registry: Registry) -> None:
    failed = registry.fails(Told(200, {**REGISTERED, "environment_id": "env-2"}))
    assert failed.text == f"{PROTOCOL_ERROR}a different environment id"
    failed = registry.fails(Told(200, {**REGISTERED, "security_profile": "none"}))
    assert failed.text == f"{PROTOCOL_ERROR}unsupported security profile `none`"


@pytest.mark.parametrize("missing", ["url", "executor_registration_id", "harness_key_authorization"])
def test_a_bundle_with_a_blank_member_is_refused(registry: Registry, missing: str) -> None:
    failed = registry.fails(Told(200, {**CONNECTED, missing: " "}), "connect")
    assert failed.text == f"{PROTOCOL_ERROR}incomplete Noise connection data"


@pytest.mark.parametrize("missing", ["url", "executor_registration_id"])
def test_a_registration_with_a_blank_member_is_refused(registry: Registry, missing: str) -> None:
    failed = registry.fails(Told(200, {**REGISTERED, missing: " "}))
    assert failed.text == f"{PROTOCOL_ERROR}incomplete Noise connection data"


def test_the_executors_key_is_checked(registry: Registry) -> None:
    for key in ({**KEY.to_json(), "extra": 1}, {**KEY.to_json(), "suite": "other"}, {}):
        failed = registry.fails(Told(200, {**CONNECTED, "executor_public_key": key}), "connect")
        assert failed.text == "environment registry request failed"
        assert failed.cause.startswith("executor_public_key: ")


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            Told(401, {"error": {"message": "who?"}}),
            "environment registry authentication error: "
            "environment registry authentication failed (401 Unauthorized): who?",
        ),
        (
            Told(403, b"  plain \n"),
            "environment registry authentication error: "
            "environment registry authentication failed (403 Forbidden): plain",
        ),
        (
            Told(403),
            "environment registry authentication error: "
            "environment registry authentication failed (403 Forbidden): empty error body",
        ),
        (
            Told(401, b"x" * 5000),
            "environment registry authentication error: "
            f"environment registry authentication failed (401 Unauthorized): {'x' * 4096}",
        ),
        (
            Told(500, {"error": {"code": "boom", "message": "m"}}),
            "environment registry request failed (500 Internal Server Error, boom): m",
        ),
        (
            Told(503, {"error": {"message": "m"}}),
            "environment registry request failed (503 Service Unavailable): m",
        ),
        (
            Told(404, b"<html>"),
            "environment registry request failed (404 Not Found): <html>",
        ),
        (
            Told(500),
            "environment registry request failed (500 Internal Server Error): empty or malformed error body",
        ),
        (
            Told(307, b"", (("location", "http://127.0.0.1:1/"),)),
            "environment registry request failed (307 Temporary Redirect): empty or malformed error body",
        ),
        (
            Told(599, {"error": []}),
            'environment registry request failed (599 <unknown status code>): {"error": []}',
        ),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Told) else "",
)
def test_a_refusal_becomes_the_contracts_text(registry: Registry, told: Told, text: str) -> None:
    failed = registry.fails(told)
    assert failed.text == text
    assert isinstance(failed, SignInError if told.status in (401, 403) else RegistryError)
    assert len(registry.server.asked) == 1


def test_a_takeover_is_told_apart(registry: Registry) -> None:
    failed = registry.fails(Told(409, {"error": {"message": "another executor has taken over"}}))
    assert isinstance(failed, TakenOver)
    assert failed.text == "another executor has taken over"
    assert registry.fails(Told(409)).text == "another executor has taken over this environment"


def test_a_reply_that_is_not_readable_is_told(registry: Registry) -> None:
    for body in (b"", b"{", b"[]", {"environment_id": "env-1"}, DEEP, NOT_UTF_8):
        failed = registry.fails(Told(200, body))
        assert failed.text == "environment registry request failed: error decoding response body"
        assert failed.cause


def test_a_reply_without_end_is_not_read(registry: Registry) -> None:
    failed = registry.fails(Told(200, b" " * (1024 * 1024 + 1)))
    assert failed.text == "environment registry request failed: error decoding response body"
    assert "longer than 1048576 bytes" in failed.cause


def test_a_registry_that_is_not_there_is_told_with_the_reason() -> None:
    client = RegistryClient("http://127.0.0.1:1", "e", list, ApiClient({}))
    with pytest.raises(RegistryError) as failed:
        client.register(KEY)
    assert failed.value.report == (
        "environment registry request failed: error sending request for url "
        "(http://127.0.0.1:1/cloud/environment/e/register)\n\n"
        "Caused by:\n    Connection refused (os error 111)"
    )


def test_a_registry_that_does_not_answer_is_given_up(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "REGISTER_TIMEOUT_S", 0.1)
    failed = registry.fails(Told(200, REGISTERED, delay_s=0.5))
    assert failed.cause == "operation timed out"


@pytest.mark.parametrize(
    "told",
    [
        Told(200, {"valid": False}),
        Told(200, {}),
        Told(200, {"valid": "true"}),
        Told(200, b"secret {"),
        Told(200, DEEP),
        Told(403, {"error": {"message": "secret"}}),
        Told(500, b"secret"),
        Told(302, b"secret", (("location", "http://127.0.0.1:1/"),)),
    ],
    ids=lambda told: f"{told.status} {told.body!r:.40}",
)
def test_only_a_clear_yes_lets_a_harness_in(registry: Registry, told: Told) -> None:
    assert "secret" not in registry.rejects(told)


def test_only_ssl_cert_file_adds_an_authority(tmp_path: Path) -> None:
    authority = make_authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "server.pem").write_bytes(authority.issue("127.0.0.1"))
    outcomes = {}
    for variable in ("SSL_CERT_FILE", "CODEX_CA_CERTIFICATE"):
        registry = Registry({variable: str(tmp_path / "ca.pem")}, str(tmp_path / "server.pem"))
        try:
            outcomes[variable] = registry.client.register(KEY).registration_id
        except RegistryError as error:
            outcomes[variable] = error.cause
        finally:
            registry.server.stop()
    assert outcomes["SSL_CERT_FILE"] == "reg-1"
    assert "CERTIFICATE_VERIFY_FAILED" in outcomes["CODEX_CA_CERTIFICATE"]


def test_a_proxy_is_used() -> None:
    def proxy(asked: Asked) -> Told:
        return Told(200, REGISTERED) if asked.path.startswith("http://registry.test/") else Told(404)

    with StandIn(proxy) as server:
        client = RegistryClient("http://registry.test", "env-1", list, ApiClient({"HTTP_PROXY": server.url}))
        assert client.register(KEY).registration_id == "reg-1"


def test_a_header_that_would_break_the_request_is_not_sent(registry: Registry) -> None:
    client = RegistryClient(
        registry.server.url, "env-1", lambda: [("authorization", "Bearer a\r\nx: y")], ApiClient({})
    )
    with pytest.raises(RegistryError) as failed:
        client.register(KEY)
    assert failed.value.cause == "the header authorization holds a control character"
    assert registry.server.asked == []


def test_the_known_body_of_a_harness_is_the_same(registry: Registry) -> None:
    """The real client's `connect` body, as it was recorded, has our form."""
    from tests.support.source import ROOT

    recorded: dict[str, Any] = json.loads((ROOT / "tests" / "wire" / "data" / "noise.json").read_text())
    body = recorded["captured_harness"]["connect_body"]
    assert list(body) == ["harness_public_key"]
    assert list(body["harness_public_key"]) == list(KEY.to_json())
