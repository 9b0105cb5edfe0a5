"""The reference executor signs in at the stand-ins of the tests too: so they ask for what is really sent."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.remote.agents import Issuer, check_assertion, claims
from tests.remote.chatgpt_hosts import ChatGptHosts
from tests.remote.standin import Asked, StandIn, Told
from tests.support.relay import Relay, RelayThread
from tests.support.remote_process import RemoteProcess
from tests.support.server_process import OURS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay."""
    thread = RelayThread()
    yield thread.relay
    thread.close()


@pytest.fixture(params=["ours", "0.142.0"])
def argv(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The program under test."""
    if request.param == "ours":
        return OURS.argv
    try:
        return (str(reference_binary(request.param)), "exec-server")
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder of the codex CLI; the reference takes none below /tmp."""
    home = new_home()
    yield home
    shutil.rmtree(home, ignore_errors=True)


def test_as_an_agent(relay: Relay, argv: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    issuer = Issuer()
    hosts = ChatGptHosts(tmp_path, issuer)
    now = int(time.time())
    token = issuer.token(claims(iat=now, exp=now + 600))
    env = {**hosts.environ, "CODEX_ACCESS_TOKEN": token, "CODEX_HOME": str(home), "CODEX_API_KEY": ""}
    flags = ("--environment-id", "env-1", "--use-agent-identity-auth")
    try:
        with RemoteProcess(relay.url, flags, env=env, argv=argv) as process:
            wait_until(lambda: relay.executors or process.process.poll() is not None, 30)
            assert relay.executors, process.errors()
    finally:
        hosts.close()
    assert hosts.tunnels == ["chatgpt.com:443", "auth.openai.com:443"]
    (call,) = relay.asked("register")
    check_assertion(call.headers["authorization"], "task-1")
    assert call.headers["chatgpt-account-id"] == "acct-1"


def test_with_a_personal_access_token(relay: Relay, argv: tuple[str, ...], home: Path) -> None:
    def whoami(asked: Asked) -> Told:
        assert (asked.path, asked.header("authorization")) == (
            "/v1/user-auth-credential/whoami",
            "Bearer at-1",
        )
        known = {"email": "a", "chatgpt_user_id": "u", "chatgpt_plan_type": "pro"}
        return Told(200, known | {"chatgpt_account_id": "acct-9", "chatgpt_account_is_fedramp": True})

    with StandIn(whoami) as api:
        env = {"CODEX_ACCESS_TOKEN": "at-1", "CODEX_AUTHAPI_BASE_URL": api.url}
        env |= {"CODEX_HOME": str(home), "CODEX_API_KEY": ""}
        with RemoteProcess(relay.url, env=env, argv=argv) as process:
            wait_until(lambda: relay.executors or process.process.poll() is not None, 30)
            assert relay.executors, process.errors()
    (call,) = relay.asked("register")
    assert call.headers["authorization"] == "Bearer at-1"
    assert call.headers["chatgpt-account-id"] == "acct-9"
    assert call.headers["x-openai-fedramp"] == "true"


def test_with_tokens_that_have_to_be_refreshed(relay: Relay, argv: tuple[str, ...], home: Path) -> None:
    from tests.remote.auth_scene import FEDRAMP, jwt

    tokens = {"id_token": FEDRAMP, "access_token": "old", "refresh_token": "r1", "account_id": "acct-1"}
    document = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": "2026-01-01T00:00:00Z"}
    (home / "auth.json").write_text(json.dumps(document))
    fresh = {"access_token": "new", "refresh_token": "r2", "id_token": jwt({"email": "a"})}
    with StandIn(lambda asked: Told(200, fresh)) as api:
        env = {"CODEX_REFRESH_TOKEN_URL_OVERRIDE": f"{api.url}/token"}
        env |= {"CODEX_HOME": str(home), "CODEX_API_KEY": ""}
        with RemoteProcess(relay.url, env=env, argv=argv) as process:
            wait_until(lambda: relay.executors or process.process.poll() is not None, 30)
            assert relay.executors, process.errors()
        (asked,) = api.asked
    assert asked.json == {
        "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
        "grant_type": "refresh_token",
        "refresh_token": "r1",
    }
    (call,) = relay.asked("register")
    assert call.headers["authorization"] == "Bearer new"
    stored = json.loads((home / "auth.json").read_text())
    assert stored["tokens"] == {**tokens, **fresh}
    assert stored["last_refresh"] > "2026-06"
