"""The variables that lead a client through a relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from execserver.client import (
    ExecServerClient,
    RemoteConfigurationError,
    RemoteModeUnavailable,
)
from execserver.wire.noise_keys import StaticKeys
from tests.client.fake_executor import ENVIRONMENT, FakeExecutor
from tests.client.test_relay_transport import OPTIONS, args
from tests.support.relay import Relay


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay() as relay:
        yield relay


@pytest.fixture
def plain(relay: Relay) -> Iterator[FakeExecutor]:
    with FakeExecutor(relay.url, reliable=False) as executor:
        yield executor


NOISE = "CODEX_EXEC_SERVER_NOISE_"


def variables(relay: Relay) -> dict[str, str]:
    return {
        f"{NOISE}REGISTRY_URL": relay.url,
        f"{NOISE}ENVIRONMENT_ID": ENVIRONMENT,
        f"{NOISE}AUTH_TOKEN": " token ",
        f"{NOISE}CHATGPT_ACCOUNT_ID": "acct-2",
        "CODEX_EXEC_SERVER_URL": "ws://127.0.0.1:1",
    }


def test_the_environment_leads_through_the_relay_first(relay: Relay, plain: FakeExecutor) -> None:
    ExecServerClient.from_env(OPTIONS, variables(relay)).close()
    (call,) = relay.asked("connect")
    assert call.headers["authorization"] == "Bearer token"
    assert call.headers["chatgpt-account-id"] == "acct-2"


@pytest.mark.parametrize("missing", ["REGISTRY_URL", "ENVIRONMENT_ID", "AUTH_TOKEN"])
@pytest.mark.parametrize("blank", [None, "", "  "])
def test_some_of_the_variables_are_not_enough(relay: Relay, missing: str, blank: str | None) -> None:
    environ = variables(relay)
    del environ[f"{NOISE}{missing}"]
    if blank is not None:
        environ[f"{NOISE}{missing}"] = blank
    with pytest.raises(RemoteConfigurationError) as caught:
        ExecServerClient.from_env(OPTIONS, environ)
    assert str(caught.value) == (
        "environment registry configuration error: Noise environment requires "
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL, CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID, "
        "and CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN"
    )


def test_the_token_is_never_shown(relay: Relay) -> None:
    assert "s3cret" not in repr(args(relay, token="s3cret"))


def test_a_machine_without_the_cryptography_is_told_so(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks() -> StaticKeys:
        raise UnsupportedAlgorithm("no ML-KEM")

    monkeypatch.setattr(StaticKeys, "generate", lacks)
    with pytest.raises(RemoteModeUnavailable, match="no ML-KEM"):
        ExecServerClient.connect_remote(args(relay))
