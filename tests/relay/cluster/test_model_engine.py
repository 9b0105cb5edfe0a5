"""The engine of the model does what the scripts in a real Redis do: answers, presence, what is published."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from execserver.relay.cluster.messages import Message, decode
from execserver.relay.cluster.presence import NodeRecord, NodeState, Presence
from execserver.relay.cluster.residents import Answer, Claim, Release, Step
from execserver.relay.engine import steps
from execserver.relay.engine.client import Engine
from execserver.relay.engine.resp import Command, Decoder, Reply, encode
from execserver.relay.engine.scripts import ALL
from execserver.relay.engine.state import EngineState
from execserver.relay.state import Outcome, Registration
from tests.conftest import LONG
from tests.relay.cluster.model_engine import ModelEngine
from tests.relay.cluster.world import ENVIRONMENT
from tools.cluster.redis_server import RedisServer, ask
from tools.problems import Problem

_END = "end"
_LEASE_S = 3600.0  # none ends here: the time of the model stands still
NODES = ("n0", "n1")
KEYS = ("A", "B", "C")


class RealEngine:
    """The scripts in a Redis, with the methods of `ModelEngine` that the model uses."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        for script in ALL:
            server.ask("SCRIPT", "LOAD", script.text)
        self._listening = socket.create_connection((server.host, server.port), 10)
        self._decoder = Decoder()
        self._listening.sendall(encode(("PSUBSCRIBE", "node:*")))
        self._heard()

    def close(self) -> None:
        """Stop listening."""
        self._listening.close()

    def forget(self) -> None:
        """Begin anew."""
        self._server.ask("FLUSHDB")

    def call(self, *commands: Command) -> list[Reply]:
        """Ask one thing after the other, as `Engine.call` does."""
        return [ask(self._server.host, self._server.port, *command) for command in commands]

    ask = call

    def register(self, registration_id: str, key: str) -> tuple[Outcome, list[tuple[str, Message]]]:
        """See `ModelEngine`."""
        registration = Registration(ENVIRONMENT, registration_id, "{}", key.encode(), b"ticket", "token", 1.0)
        outcome = EngineState(cast(Engine, self)).register(registration, 256)
        return outcome, self._heard()

    def step(self, step: Step) -> tuple[Answer | None, list[tuple[str, Message]]]:
        """See `ModelEngine`."""
        (answer,) = steps.tell(cast(Engine, self), [step])
        return answer, self._heard()

    def beat(self, node: str, epoch: str) -> str:
        """See `ModelEngine`."""
        return steps.beat(cast(Engine, self), node, NodeRecord(epoch, NodeState.UP), _LEASE_S, ()).held

    @property
    def presence(self) -> Presence | None:
        """What it holds."""
        return steps.presence(cast(Engine, self), ENVIRONMENT)

    def _heard(self) -> list[tuple[str, Message]]:
        """Return what was published since the last look."""
        self._server.ask("PUBLISH", f"node:{_END}", "")
        heard: list[tuple[str, Message]] = []
        while True:
            for reply in self._decoder.feed(self._listening.recv(65536)):
                assert isinstance(reply, list)
                if reply[0] != b"pmessage":
                    continue
                channel, line = (part.decode() for part in reply[2:] if isinstance(part, bytes))
                node, message = channel.removeprefix("node:"), decode(line)
                if node == _END:
                    return heard
                assert message is not None, line
                heard.append((node, message))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    folder: Path = tmp_path_factory.mktemp("redis")
    try:
        server = RedisServer(folder)
    except Problem as missing:
        pytest.skip(f"{missing}; {missing.cure}")
    server.start()
    engine = RealEngine(server)
    yield engine
    engine.close()
    server.service.stop()


presences = st.tuples(
    st.sampled_from(NODES),
    st.integers(1, 2),
    st.sampled_from((0, 0, 0, 1)),  # 1: of the registration before the newest one
)
acts = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(KEYS)),
    st.tuples(st.just("claim"), presences),
    st.tuples(st.just("claim again"), presences),
    st.tuples(st.just("release"), presences),
    st.tuples(st.just("beat"), st.tuples(st.sampled_from(NODES), st.integers(0, 1))),
)


@settings(
    max_examples=500 if LONG else 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(acts, min_size=3, max_size=30))
def test_the_model_answers_as_redis_does(real: RealEngine, course: list[tuple[str, Any]]) -> None:
    real.forget()
    model = ModelEngine()
    registrations = ["reg_0", "reg_1"]
    assert model.register("reg_1", KEYS[0]) == real.register("reg_1", KEYS[0])
    for kind, what in course:
        if kind == "register":
            registrations.append(f"reg_{len(registrations)}")
            assert model.register(registrations[-1], what) == real.register(registrations[-1], what)
        elif kind == "beat":
            node, process = what[0], f"{what[1]:016x}"
            assert model.beat(node, process, 0) == real.beat(node, process)
        else:
            node, claim, age = what
            presence = Presence(node, "0" * 16, claim, registrations[-1 - age])
            step: Step = Release(ENVIRONMENT, presence)
            if kind != "release":
                step = Claim(ENVIRONMENT, presence, fresh=kind == "claim")
            assert model.step(step) == real.step(step)
        assert model.presence == real.presence
