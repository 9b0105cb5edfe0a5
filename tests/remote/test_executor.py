"""The executor's life on loopback: registering, connecting, reconnecting, and what is fatal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from execserver.remote.backoff import Backoff, registration_pause
from execserver.remote.config import RemoteEnvironmentConfig, find_codex_home, read_config
from execserver.remote.errors import ConfigurationError, RemoteError
from execserver.remote.executor import RemoteExecutor
from execserver.remote.tools import Timing, Tools
from execserver.wire.relay_frames import (
    RESET_PROTOCOL_ERROR,
    Data,
    RelayFrame,
    Reset,
    decode_frame,
    encode_frame,
)
from tests.support.relay import Call, Relay, Reply
from tests.support.waiting import wait_until


class World:
    """A relay, and an executor with a clock that a test moves by its pauses."""

    def __init__(self, relay: Relay, home: Path) -> None:
        self.relay = relay
        self.environ = {"CODEX_API_KEY": "sk-test", "HOME": str(home)}
        self.pauses: list[float] = []
        self.stop_after = 1000
        self.now = 0.0
        self.executor: RemoteExecutor | None = None
        self.greenlet: gevent.Greenlet[..., RemoteError | None] | None = None

    def sleep(self, seconds: float) -> None:
        """Note a pause and take none."""
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) >= self.stop_after:
            raise gevent.GreenletExit
        gevent.sleep(0)

    def start(self, **config: Any) -> World:
        """Run an executor."""
        tools = Tools(
            self.environ, self.sleep, Backoff(lambda: 1.0), Timing(5.0), lambda: self.now, lambda: 0.0
        )
        given = RemoteEnvironmentConfig(**{"base_url": self.relay.url, "environment_id": "env-1", **config})
        self.executor = RemoteExecutor(given, lambda transport: lambda: None, tools)
        self.greenlet = gevent.spawn(self._run)
        return self

    def _run(self) -> RemoteError | None:
        assert self.executor is not None
        try:
            self.executor.run()
        except RemoteError as error:
            return error
        return None

    def wait(self) -> None:
        """Wait until it has ended."""
        assert self.greenlet is not None
        self.greenlet.join(20)
        assert self.greenlet.ready()

    def failure(self, **config: Any) -> RemoteError:
        """Run an executor that fails."""
        self.start(**config)
        self.wait()
        assert self.greenlet is not None
        assert isinstance(self.greenlet.value, RemoteError)
        return self.greenlet.value

    def connected(self, count: int) -> None:
        """Wait for the executor's n-th websocket."""
        wait_until(lambda: len(self.relay.executors) >= count, pause=gevent.sleep)

    def close(self) -> None:
        """End the executor."""
        if self.executor is not None:
            self.executor.close()
        if self.greenlet is not None:
            self.greenlet.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world without an executor yet."""
    with Relay() as relay:
        relay.routing = False
        world = World(relay, tmp_path)
        yield world
        world.close()


def test_an_executor_registers_connects_and_is_silent(world: World) -> None:
    world.start()
    world.connected(1)
    gevent.sleep(0.02)
    (call,) = world.relay.calls
    assert (call.verb, call.headers["authorization"]) == ("register", "Bearer sk-test")
    assert world.relay.executor.head.startswith("GET /executor?n=1 HTTP/1.1")
    assert world.relay.executor.received.empty()
    world.relay.executor.send(encode_frame(RelayFrame("nobody", Data(0, b"x" * 32))))
    answer = decode_frame(world.relay.executor.received.get(timeout=20) or b"")
    assert answer == RelayFrame("nobody", Reset(RESET_PROTOCOL_ERROR))


def test_failing_to_connect_waits_longer_each_time(world: World) -> None:
    world.relay.upgrade_status = 503
    world.stop_after = 8
    world.start().wait()
    assert world.pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert len(world.relay.asked("register")) == 1


def test_pauses_are_cut_at_random() -> None:
    for chance, expected in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        assert Backoff(lambda chance=chance: chance).next_pause() == expected  # type: ignore[misc]
    backoff = Backoff()
    for step in (1, 2, 4, 8, 16, 30, 30):
        assert step / 2 <= backoff.next_pause() <= step


def test_a_connection_that_was_of_use_starts_the_series_anew(world: World) -> None:
    world.relay.upgrade_status = 500
    world.stop_after = 7
    world.start()
    wait_until(lambda: len(world.pauses) >= 3, pause=lambda _: gevent.sleep(0))
    world.relay.upgrade_status = 101
    world.connected(1)
    before = len(world.pauses)
    world.relay.executor.send(encode_frame(RelayFrame("nobody", Data(0, b"x" * 32))))
    world.relay.executor.received.get(timeout=20)
    world.relay.upgrade_status = 500
    world.relay.executor.drop()
    world.stop_after = before + 3
    world.wait()
    assert world.pauses[before:] == [1, 2, 4]
    assert len(world.relay.asked("register")) == 1


def test_an_address_that_drops_everybody_is_asked_ever_less_often(world: World) -> None:
    world.stop_after = 5
    world.start()
    for number in range(1, 6):
        world.connected(number)
        world.relay.executor.drop()
    world.wait()
    assert world.pauses == [1, 2, 4, 8, 16]
    assert {peer.head.split()[1] for peer in world.relay.executors} == {"/executor?n=1"}


@pytest.mark.parametrize("status", [400, 401, 404, 410, 499])
def test_a_refused_upgrade_registers_again_with_the_same_key(world: World, status: int) -> None:
    world.relay.upgrade_status = status
    world.stop_after = 3
    world.start().wait()
    registered = world.relay.asked("register")
    assert len(registered) == 4
    assert len({json.dumps(call.body) for call in registered}) == 1
    assert world.pauses == [1, 2, 4]


@pytest.mark.parametrize("status", [301, 500, 503])
def test_other_answers_keep_the_registration(world: World, status: int) -> None:
    world.relay.upgrade_status = status
    world.stop_after = 3
    world.start().wait()
    assert len(world.relay.asked("register")) == 1


def test_the_new_registration_is_used(world: World) -> None:
    world.relay.upgrade_status = 401
    world.start()
    wait_until(lambda: len(world.pauses) >= 1, pause=lambda _: gevent.sleep(0))
    world.relay.upgrade_status = 101
    world.connected(1)
    assert world.relay.executor.head.split()[1] == f"/executor?n={world.relay.registrations}"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(400, {"error": {"code": "boom", "message": "no"}}), "(400 Bad Request, boom): no"),
        (Reply(401, {"error": {"message": "no"}}), "failed (401 Unauthorized): no"),
        (
            Reply(409, {"error": {"message": "another executor has taken over this environment"}}),
            "another executor has taken over this environment",
        ),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Reply) else "",
)
@pytest.mark.parametrize("later", [False, True])
def test_a_registration_that_fails_is_fatal_at_any_time(
    world: World, reply: Reply, text: str, later: bool
) -> None:
    if later:
        register = world.relay.replies["register"]
        answers: list[Callable[..., Reply]] = [register]
        world.relay.replies["register"] = lambda call: answers.pop()(call) if answers else reply
        world.relay.upgrade_status = 404
    else:
        world.relay.replies["register"] = lambda call: reply
    assert world.failure().text.endswith(text)
    assert world.pauses == []


def test_a_registry_that_is_not_there_is_fatal(world: World) -> None:
    failed = world.failure(base_url="http://127.0.0.1:1/")
    assert failed.text.startswith("environment registry request failed: error sending request for url")
    assert failed.cause == "Connection refused (os error 111)"


def test_the_checks_have_an_order(world: World, tmp_path: Path) -> None:
    broken = {"base_url": " ", "environment_id": " "}
    home = tmp_path / "codex"
    world.environ |= {"CODEX_HOME": str(home), "CODEX_API_KEY": " "}
    assert world.failure(**broken).text == f'CODEX_HOME points to "{home}", but that path does not exist'
    home.mkdir()
    (home / "config.toml").write_text("x = [")
    assert world.failure(**broken).text.startswith(f"{home}/config.toml: ")
    (home / "config.toml").write_text("")
    assert "run `codex login` or set CODEX_API_KEY" in world.failure(**broken).text
    world.environ["CODEX_API_KEY"] = "sk-test"
    assert "relative URL without a base" in world.failure(**broken).text
    broken["base_url"] = "http://127.0.0.1:1"
    assert "environment id is required" in world.failure(**broken).text
    assert "only letters, digits" in world.failure(**(broken | {"environment_id": "a/b"})).text
    tokens = {"access_token": "t", "account_id": "a"}
    (home / "auth.json").write_text(json.dumps({"tokens": tokens, "last_refresh": "2026-06-22T12:00:00Z"}))
    world.environ["CODEX_API_KEY"] = ""
    assert "base URL is required" in world.failure(base_url=" / ").text
    assert world.relay.calls == []


def test_only_api_keys_have_a_host_rule(world: World, tmp_path: Path) -> None:
    assert "restricted to HTTPS openai.com" in world.failure(base_url="http://registry.test").text
    tokens = {"access_token": "t", "account_id": "a"}
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text(
        json.dumps({"tokens": tokens, "last_refresh": "2999-06-22T12:00:00Z"})
    )
    world.environ |= {"CODEX_API_KEY": "", "HTTP_PROXY": "http://127.0.0.1:1"}
    assert "error sending request" in world.failure(base_url="http://registry.test").text


def test_a_websocket_that_answers_no_ping_is_replaced(world: World) -> None:
    tools = Tools(world.environ, world.sleep, Backoff(lambda: 0.0), Timing(5.0, 0.02, 0.05))
    config = RemoteEnvironmentConfig(world.relay.url, "env-1")
    world.executor = RemoteExecutor(config, lambda transport: lambda: None, tools)
    world.greenlet = gevent.spawn(world._run)
    world.connected(1)
    world.relay.executor.answers_pings = False
    world.connected(2)
    assert world.pauses


def test_the_user_is_told_each_state(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "execserver")
    world.stop_after = 3
    world.start(name="my box")
    world.connected(1)
    world.relay.upgrade_status = 401
    world.relay.executor.drop()
    world.wait()
    text = "\n".join(caplog.messages)
    for line in (
        "signing in with API key from CODEX_API_KEY",
        "registered as environment env-1 (registration reg-1)",
        "serving environment env-1 as 'my box'",
        f"connected to ws://127.0.0.1:{world.relay.port}; waiting for a harness",
        "reconnecting in 1.0 s",
        "the rendezvous answered 401; registering again",
        "registered as environment env-1 (registration reg-2)",
        "reconnecting in 2.0 s",
    ):
        assert line in text
    assert "sk-test" not in text
    assert "?n=" not in text


def test_a_relay_url_of_no_use_is_told_and_tried_again(world: World) -> None:
    register = world.relay.replies["register"]

    def answer(call: Any) -> Reply:
        reply = register(call)
        assert isinstance(reply.body, dict)
        return Reply(200, reply.body | {"url": "http://x/?sig=secret"})

    world.relay.replies["register"] = answer
    world.stop_after = 2
    world.start().wait()
    assert world.pauses == [1, 2]


def test_the_configuration_is_read_as_far_as_it_counts(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('chatgpt_base_url = "a"\nmodel = "m"\n')
    assert read_config(str(tmp_path), []) == {"chatgpt_base_url": "a"}
    overrides = ['chatgpt_base_url="b"', "cli_auth_credentials_store = keyring", "nothing", "model=x"]
    assert read_config(str(tmp_path), overrides) == {
        "chatgpt_base_url": "b",
        "cli_auth_credentials_store": "keyring",
    }
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError):
        read_config(str(tmp_path), [])


def test_the_home_folder_is_found(tmp_path: Path) -> None:
    assert find_codex_home({"HOME": "/h"}) == "/h/.codex"
    assert find_codex_home({"HOME": "/h", "CODEX_HOME": str(tmp_path)}) == str(tmp_path)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, {"error": {"code": "registration_conflict", "message": "later"}}),
        (503, {"detail": {"code": "registration_conflict"}}),
        (502, {"error": {"code": "authentication_service_unavailable"}}),
        (502, {"detail": {"code": "authentication_service_unavailable", "message": "later"}}),
        (429, {"error": {"code": "too_many_requests"}}),
        (500, {}),
        (503, {"error": {"code": "relay_draining"}}),
    ],
)
def test_a_registration_is_tried_again_while_the_registry_cannot_take_it(
    world: World, status: int, body: dict[str, object]
) -> None:
    answered = world.relay.replies["register"]

    def reply(call: Call) -> Reply:
        return Reply(status, body) if len(world.relay.asked("register")) <= 6 else answered(call)

    world.relay.replies["register"] = reply
    world.start()
    world.connected(1)
    assert world.pauses == [0.5, 1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"code": "registration_conflict"}}),
        (404, {"error": {"code": "authentication_service_unavailable"}}),
        (307, {}),
    ],
)
def test_a_refusal_that_the_registry_means_is_final(
    world: World, status: int, body: dict[str, object]
) -> None:
    world.relay.replies["register"] = lambda call: Reply(status, body)
    failure = world.failure()
    assert failure.text.startswith(f"environment registry request failed ({status} ")
    assert world.pauses == []


def test_pauses_between_registrations_grow_by_up_to_a_half() -> None:
    assert [registration_pause(n, lambda: 1.0) for n in (0, 1, 3, 4, 10_000)] == [0.75, 1.5, 6.0, 7.5, 7.5]
