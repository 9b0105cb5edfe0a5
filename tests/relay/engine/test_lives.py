"""What ends between a relay and its engine is freed at once: lost connections, refused requests."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.relay.engine.client import Engine
from execserver.relay.engine.subscription import Subscription
from execserver.relay.errors import EngineSilent
from execserver.relay.state import MemoryState, Registration
from tests.conftest import LONG
from tests.relay.engine.scripted import ScriptedEngine, until
from tests.support.engine_process import EngineProcess
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.relay_process import key_object
from tests.support.relay_stage import NAME, RelayStage, connected

LIVES = 300 if LONG else 20


def test_a_client_and_its_calls(process: EngineProcess) -> None:
    def life(number: int) -> None:
        engine = Engine(process.dialer(), (), lambda result: None)
        engine.start()
        assert engine.call(("SET", "key", number), ("GET", "key")) == [b"OK", str(number).encode()]
        engine.close()
        turns()

    assert_freed(life, LIVES)


def test_calls_whose_connection_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "execserver")  # what is logged would be kept
    server = ScriptedEngine(lambda command: b"?\r\n")

    def life(number: int) -> None:
        engine = Engine(server.dialer(), (), lambda result: None)
        engine.start()
        with suppress(EngineSilent):
            engine.call(("GET", "key"))
        engine.close()
        turns()

    assert_freed(life, LIVES)
    server.close()
    turns()


def test_a_subscription_and_those_who_listen(process: EngineProcess) -> None:
    def life(number: int) -> None:
        lines: list[str] = []
        made = Subscription(
            process.dialer(), ("tokens",), lambda channel, line: lines.append(line), lambda: None
        )
        made.start()
        assert made.is_ready.wait(20)
        with made.listening("arr:box") as arrivals:
            assert arrivals.is_open.wait(20)
        process.ask("PUBLISH", "tokens", "x")
        until(lambda: lines == ["x"])
        made.close()
        turns()

    assert_freed(life, LIVES)


class Silent(MemoryState):
    """The state of an engine that does not answer at the moment."""

    def registration(self, environment_id: str) -> Registration | None:
        raise EngineSilent("the engine did not answer")


def test_requests_while_the_engine_is_silent(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path, state=Silent())

    def life(number: int) -> None:
        answer = stage.call("connect", {"harness_public_key": key_object(1)})
        assert answer["error"]["code"] == "state_unavailable"
        sock = connected(stage.port)
        sock.sendall(
            f"GET /rendezvous/{NAME}?token=h-x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 503 ")
        sock.close()

    assert_freed(life, LIVES)
    stage.close()
    turns()
