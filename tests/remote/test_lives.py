"""What ends at an executor behind a relay is freed at once: no stream or websocket waits for a collection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from execserver.remote.answers import CallFailed, registry_environment
from execserver.remote.http import ApiClient
from execserver.remote.registry import RegistryClient
from execserver.remote.rendezvous import ConnectFailed, RendezvousSocket
from execserver.remote.tools import Timing
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.relay_frames import RESET_CLOSED, RESET_HARNESS_LOST, Data, Handshake, Reset
from execserver.wire.relay_stream import HarnessStream, Route
from execserver.wire.reliability import SILENCE_S
from tests.conftest import LONG
from tests.remote.scene import (
    EXECUTOR,
    HARNESS,
    REGISTRATION,
    Harness,
    Scene,
    never_answers,
    rejects,
    says_no,
)
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.relay_stage import NAME, RelayStage
from tests.support.waiting import wait_until

LIVES = 1000 if LONG else 60
SPLIT_URLS = ("urllib.parse.SplitResult", "builtins.tuple")  # of which the library keeps some


@pytest.fixture(params=[True, False], ids=["told", "waited for"])
def scene(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[Scene]:
    caplog.set_level(logging.CRITICAL, "execserver.remote.streams")  # else records of it are kept
    made = Scene(told=request.param)
    yield made
    made.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RelayStage]:
    made = RelayStage(tmp_path)
    yield made
    made.close()
    turns()


def freed(scene: Scene, life: Callable[[int], None]) -> None:
    """Fail unless lives leave nothing behind but, for some time, keys for the next handshake."""

    def with_websocket(number: int) -> None:
        if scene.table.writer is None:
            scene.attach()
        life(number)
        forget(scene)

    def settle() -> None:
        cut(scene)
        turns()

    assert_freed(with_websocket, LIVES, settle=settle)


def cut(scene: Scene, harness: Harness | None = None) -> None:
    """Take the websocket away; the prepared keys go with it."""
    writer = scene.table.writer
    scene.table.detach()
    if writer is not None:
        writer.close()
    turns()


def forget(scene: Scene) -> None:
    """Drop what the scene has kept of its streams."""
    scene.clients.clear()
    scene.asked.clear()
    scene.questions.clear()
    scene.order.clear()
    scene.sent.clear()


def opened(scene: Scene, number: int) -> Harness:
    """Return a harness whose stream is open and has carried a message each way."""
    harness = Harness(scene, f"stream-{number}").open()
    harness.send(b"a request" * 20_000)
    client = scene.clients[harness.stream_id]
    assert client.messages == [b"a request" * 20_000]
    client.transport.outbox.send(b"an answer" * 20_000)
    assert harness.read(1) == [b"an answer" * 20_000]
    return harness


def reset(scene: Scene, harness: Harness) -> None:
    scene.take(harness.stream_id, Reset(RESET_CLOSED))


def lost(scene: Scene, harness: Harness) -> None:
    scene.take(harness.stream_id, Reset(RESET_HARNESS_LOST))


def closed(scene: Scene, harness: Harness) -> None:
    scene.clients[harness.stream_id].transport.close(0, "enough")
    turns()


def broken(scene: Scene, harness: Harness) -> None:
    scene.take(harness.stream_id, Data(5000, bytes(32)))
    assert scene.is_reset(harness.stream_id)


def begun_again(scene: Scene, harness: Harness) -> None:
    scene.take(harness.stream_id, Handshake(harness.message1))
    reset(scene, harness)


@pytest.mark.parametrize("end", [reset, lost, closed, broken, begun_again, cut])
def test_a_plain_stream(scene: Scene, end: Callable[[Scene, Harness], None]) -> None:
    def life(number: int) -> None:
        harness = opened(scene, number)
        client = scene.clients[harness.stream_id]
        end(scene, harness)
        assert client.has_ended

    freed(scene, life)


@pytest.mark.parametrize("how", ["no", "rejected", "garbled", "cancelled", "twice", "early", "authorization"])
def test_a_handshake_that_comes_to_nothing(scene: Scene, how: str) -> None:
    if how == "no":
        scene.judge = says_no
    elif how == "rejected":
        scene.judge = rejects
    elif how != "garbled":
        scene.judge = never_answers

    def life(number: int) -> None:
        name = f"stream-{number}"
        scene.clock.now += 60  # after some failures there is a pause
        harness = Harness(scene, name, b"\xff\xff" if how == "authorization" else b"let-me-in")
        if how == "garbled":
            scene.take(name, Handshake(harness.message1[:-1] + bytes([harness.message1[-1] ^ 1])))
        else:
            harness.begin()
            turns()
        if how == "cancelled":
            scene.take(name, Reset(RESET_CLOSED))
        elif how == "twice":
            harness.begin()
        elif how == "early":
            scene.take(name, Data(0, bytes(32)))
        turns()
        assert how in ("cancelled", "rejected") or scene.is_reset(name)

    freed(scene, life)


class Reliable:
    """A harness whose stream outlives websockets."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene = scene
        self.name = f"stream-{number}"
        route = Route(REGISTRATION.environment_id, REGISTRATION.registration_id, EXECUTOR.public, "let-me-in")
        self.stream = HarnessStream(self.name, HARNESS, route, scene.clock())
        self.messages: list[bytes] = []
        self.until(lambda: self.name in scene.clients)
        self.stream.send(b'{"id":1,"method":"initialize","params":{"clientName":"x"}}', scene.clock())
        self.until(lambda: scene.clients[self.name].messages)
        scene.clients[self.name].transport.outbox.send(b'{"id":1,"result":{"sessionId":"s"}}')
        self.until(lambda: self.stream.is_reliable)

    def until(self, condition: Callable[[], object]) -> None:
        """Pass frames on until something holds."""

        def is_so() -> object:
            while (frame := self.stream.next_frame(self.scene.clock())) is not None:
                self.scene.table.take(frame)
            while self.scene.sent:
                self.messages += self.stream.feed(self.scene.sent.popleft(), self.scene.clock())
            return condition()

        wait_until(is_so, pause=lambda _: gevent.sleep(0))


@pytest.mark.parametrize("end", ["closed", "silence", "reset"])
def test_a_stream_that_outlives_its_websocket(scene: Scene, end: str) -> None:
    def life(number: int) -> None:
        peer = Reliable(scene, number)
        client = scene.clients[peer.name]
        client.transport.outbox.send(b"unacknowledged" * 10_000)
        cut(scene)
        scene.sent.clear()
        peer.stream.lost(scene.clock())
        if end == "silence":
            scene.clock.now += SILENCE_S + 1
            client.transport._tick()
        else:
            scene.attach()
            peer.stream.restored(scene.clock())
            peer.until(lambda: peer.messages[-1:] == [b"unacknowledged" * 10_000])
            if end == "closed":
                client.transport.close(0, "enough")
                turns()
            else:
                scene.take(peer.name, Reset("another reason"))
        assert client.has_ended

    freed(scene, life)


def executor_url(stage: RelayStage) -> str:
    body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": EXECUTOR.public.to_json()}
    return str(stage.call("register", body)["url"])


@pytest.mark.parametrize("end", ["here", "there", "rubbish"])
def test_a_websocket_to_the_rendezvous(stage: RelayStage, end: str) -> None:
    def life(number: int) -> None:
        ws = RendezvousSocket.connect(executor_url(stage), {}, Timing(5.0))
        ws.send(b"something")
        if end == "here":
            ws.close()
        elif end == "there":
            stage.rendezvous.end()
        else:
            for _ in range(65):
                ws.send(b"")
        assert ws.receive() is None
        ws.close()

    assert_freed(life, LIVES, foreign=SPLIT_URLS)


def test_a_rendezvous_that_refuses(stage: RelayStage) -> None:
    def life(number: int) -> None:
        path = ("/rendezvous/box-1?token=x-wrong", "/nothing")[number % 2]
        with pytest.raises(ConnectFailed):
            RendezvousSocket.connect(f"ws://127.0.0.1:{stage.port}{path}", {}, Timing(5.0))
        with pytest.raises(ConnectFailed):
            RendezvousSocket.connect("ws://127.0.0.1:1/", {}, Timing(5.0))

    assert_freed(life, LIVES, foreign=SPLIT_URLS)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_registry_request(stage: RelayStage, keeps: bool) -> None:
    client = ApiClient(registry_environment({}), keeps=keeps)
    headers = [("authorization", f"Bearer {stage.token}")]
    registry = RegistryClient(f"http://127.0.0.1:{stage.port}", NAME, lambda: headers, client)
    keys = StaticKeys.generate()

    def life(number: int) -> None:
        assert registry.register(keys.public).environment_id == NAME
        with pytest.raises(CallFailed):
            client.call("GET", "http://127.0.0.1:1/", ())

    assert_freed(life, LIVES)
    client.close()
