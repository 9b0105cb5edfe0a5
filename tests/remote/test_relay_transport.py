"""A stream whose two ends are both reliable: it outlives websockets, and ends when nobody comes back."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from execserver.wire.relay_frames import RESET_CLOSED, Reset
from execserver.wire.relay_stream import HarnessStream, Route
from execserver.wire.reliability import SILENCE_S
from tests.remote.scene import EXECUTOR, HARNESS, REGISTRATION, Scene
from tests.support.waiting import wait_until

ASK = b'{"id":1,"method":"initialize","params":{"clientName":"x"}}'
ANSWER = b'{"id":1,"result":{"sessionId":"s"}}'


class Peer:
    """A reliable harness, driven by the test."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        route = Route(REGISTRATION.environment_id, REGISTRATION.registration_id, EXECUTOR.public, "let-me-in")
        self.stream = HarnessStream("s", HARNESS, route, scene.clock())
        self.messages: list[bytes] = []
        self.exchange()
        wait_until(lambda: "s" in scene.clients, pause=gevent.sleep)
        self.client = scene.clients["s"]
        self.stream.send(ASK, scene.clock())
        self.exchange()
        self.client.transport.outbox.send(ANSWER)
        self.exchange()
        assert self.stream.is_reliable
        assert self.client.transport.is_reliable

    def exchange(self) -> None:
        """Pass frames both ways until nobody has any."""
        quiet = 0
        while quiet < 5:
            quiet += 1
            while (frame := self.stream.next_frame(self.scene.clock())) is not None:
                self.scene.table.take(frame)
                quiet = 0
            gevent.sleep(0.001)
            while self.scene.sent:
                self.messages += self.stream.feed(self.scene.sent.popleft(), self.scene.clock())
                quiet = 0

    def lose(self) -> None:
        """Take the websocket from both ends, with all that is on its way."""
        self.scene.table.detach()
        self.scene.sent.clear()
        self.stream.lost(self.scene.clock())

    def find(self) -> None:
        """Give both ends another one."""
        self.scene.attach()
        self.stream.restored(self.scene.clock())
        self.exchange()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A harness in the middle of a conversation."""
    scene = Scene()
    yield Peer(scene)
    scene.close()


def test_what_was_on_its_way_arrives_over_the_next_websocket(peer: Peer) -> None:
    for number in range(10):
        peer.client.transport.outbox.send(b"%d" % number)
        peer.stream.send(b"%d" % number, peer.scene.clock())
    wait_until(lambda: len(peer.scene.sent) >= 10, pause=gevent.sleep)  # and all of that is lost
    peer.lose()
    peer.client.transport.outbox.send(b"10")
    assert not peer.client.has_ended
    assert peer.scene.table.count == 1
    peer.find()
    assert peer.messages[1:] == [b"%d" % number for number in range(11)]
    assert peer.client.messages[1:] == [b"%d" % number for number in range(10)]


def test_a_stream_that_nobody_takes_up_again_ends(peer: Peer) -> None:
    peer.lose()
    peer.scene.clock.now += SILENCE_S + 1
    peer.client.transport._tick()
    assert peer.client.has_ended
    assert peer.scene.table.count == 0
    assert peer.client.transport.outbox.closed


def test_closing_tells_a_reliable_peer(peer: Peer) -> None:
    peer.client.transport.outbox.send(b"last")
    peer.client.transport.close(0, "the executor is shutting down")
    wait_until(lambda: len(peer.scene.sent) >= 2, pause=gevent.sleep)
    last = peer.scene.sent.pop()
    assert last.body == Reset(RESET_CLOSED)
    assert peer.scene.table.count == 0


def test_nothing_is_let_in_while_a_connection_is_paused_and_nothing_is_lost(peer: Peer) -> None:
    peer.client.transport.pause()
    for number in range(200):
        peer.stream.send(b"%d" % number, peer.scene.clock())
    peer.exchange()
    assert peer.client.messages == [ASK.replace(b'"x"}', b'"x","relayReliability":1}')]
    peer.client.transport.resume()
    peer.exchange()
    assert peer.client.messages[1:] == [b"%d" % number for number in range(200)]
