"""Agent Identity as a user has it: the program, the public hosts' stand-ins, and a registry that verifies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.agents import Issuer, check_assertion, claims
from tests.remote.chatgpt_hosts import ChatGptHosts
from tests.support.relay import Relay, RelayThread
from tests.support.remote_process import RemoteProcess, connect

FLAGS = ("--environment-id", "env-1", "--use-agent-identity-auth")


@pytest.fixture
def relay() -> Iterator[Relay]:
    """A relay."""
    thread = RelayThread()
    yield thread.relay
    thread.close()


@pytest.fixture
def issuer() -> Issuer:
    """Whoever signs tokens."""
    return Issuer()


@pytest.fixture
def hosts(tmp_path: Path, issuer: Issuer) -> Iterator[ChatGptHosts]:
    """The public hosts."""
    hosts = ChatGptHosts(tmp_path, issuer)
    yield hosts
    hosts.close()


def token(issuer: Issuer) -> str:
    now = time.time()
    return issuer.token(claims(iat=now, exp=now + 600))


def test_each_request_to_the_registry_is_signed(
    relay: Relay, hosts: ChatGptHosts, issuer: Issuer, tmp_path: Path
) -> None:
    env = {**hosts.environ, "CODEX_ACCESS_TOKEN": token(issuer), "CODEX_HOME": str(tmp_path)}
    with RemoteProcess(relay.url, FLAGS, env=env) as process:
        process.says("waiting for a harness")
        with connect(relay) as client:
            assert client.start(["echo", "x"]).communicate().stdout == b"x\n"
        assert process.stop() == 0
        assert "signing in with Agent Identity" in process.errors()
        assert env["CODEX_ACCESS_TOKEN"] not in process.errors()
    assert hosts.tunnels == ["chatgpt.com:443", "auth.openai.com:443"]
    for verb in ("register", "validate"):
        (call,) = relay.asked(verb)
        check_assertion(call.headers["authorization"], "task-1")
        assert call.headers["chatgpt-account-id"] == "acct-1"


def test_a_token_of_somebody_else_is_refused(relay: Relay, hosts: ChatGptHosts, tmp_path: Path) -> None:
    env = {**hosts.environ, "CODEX_ACCESS_TOKEN": token(Issuer()), "CODEX_HOME": str(tmp_path)}
    with RemoteProcess(relay.url, FLAGS, env=env) as process:
        assert process.wait() == 1
        assert "Error: failed to verify agent identity JWT\n" in process.errors()
    assert relay.calls == []
    assert hosts.tunnels == ["chatgpt.com:443"]
