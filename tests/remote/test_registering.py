"""A registration that begins before anybody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import gevent.event
import pytest

from execserver.remote import registering as module
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.remote.errors import RemoteError, SignInError
from execserver.remote.registering import Registering
from execserver.remote.tools import Tools
from tests.support.relay import Relay, Reply
from tests.support.waiting import wait_until


@pytest.fixture
def registering(relay: Relay, tmp_path: Path) -> Iterator[Registering]:
    environ = {"CODEX_API_KEY": "sk-of-the-test-1", "CODEX_HOME": str(tmp_path)}
    made = Registering(RemoteEnvironmentConfig(relay.url, "env-1"), Tools(environ))
    yield made
    made.close()


def test_the_registry_is_asked_before_anybody_waits(registering: Registering, relay: Relay) -> None:
    registering.begin()
    wait_until(lambda: len(relay.calls) == 1, pause=gevent.sleep)
    found = registering.first()
    assert found.environment_id == "env-1"
    assert len(relay.calls) == 1
    again = registering.again(found)
    assert relay.calls[0].body == relay.calls[1].body  # the same keys
    assert again.environment_id == "env-1"


def test_without_a_beginning_it_is_asked_when_somebody_waits(registering: Registering) -> None:
    assert registering.first().registration.environment_id == "env-1"


def test_a_failure_waits_for_whoever_wants_the_registration(registering: Registering, relay: Relay) -> None:
    refused = Reply(401, {"error": {"code": "x", "message": "no"}})
    relay.replies["register"] = lambda _: refused
    registering.begin()
    wait_until(lambda: len(relay.calls) == 1, pause=gevent.sleep)
    with pytest.raises(SignInError, match="no"):
        registering.first()


def test_a_mistake_of_our_own_is_no_registration(
    registering: Registering, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(module, "resolve_auth", broken)
    registering.begin()
    with pytest.raises(RemoteError, match="a mistake of this program"):
        registering.first()
    assert "KeyError" in capfd.readouterr().err


def test_closing_ends_a_registration_that_hangs(registering: Registering, relay: Relay) -> None:
    with gevent.socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        hanging = Registering(
            RemoteEnvironmentConfig(url, "env-1"), Tools({"CODEX_API_KEY": "sk-1", "HOME": "/"})
        )
        hanging.begin()
        waiting = gevent.spawn(hanging.first)
        connection, _ = silent.accept()
        hanging.close()
        waiting.join(20)
        connection.close()
        assert isinstance(waiting.exception, RemoteError)
