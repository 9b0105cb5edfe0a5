"""One websocket of the relay by itself: what arrives in small pieces."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import gevent
import pytest

from execserver.relay.byte_streams import PlainByteStream
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.link_context import Shared
from execserver.relay.links import WebSocketLink
from execserver.relay.ws_frames import end_of_frames
from tests.support.greenlets import turns
from tests.support.relay_process import masked_frame


class Owner:
    """A fake: keeps what the link gives it."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def receive(self, link: WebSocketLink, messages: list[bytes]) -> None:
        self.messages += messages

    def lost(self, link: WebSocketLink, why: str) -> None:
        pass


class Scene:
    """A link and the peer of its socket."""

    def __init__(self) -> None:
        theirs, self.peer = socket.socketpair()
        theirs.setblocking(False)
        self.owner = Owner()
        identity = Identity(True, "box", "r", b"f", "t")
        self.link = WebSocketLink(
            PlainByteStream(theirs), "peer", identity, self.owner, Shared(Limits(), 30.0)
        )
        self.link.start(b"")

    def send(self, data: bytes, size: int) -> None:
        """Send in pieces, each of which is read before the next."""
        for at in range(0, len(data), size):
            self.peer.sendall(data[at : at + size])
            turns()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.link.give_up()
    made.peer.close()
    gevent.sleep(0)  # one turn, in which what was given up ends


def test_a_frame_in_many_pieces_is_looked_at_when_it_is_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(data: memoryview, limit: int) -> int:
        nonlocal looks
        looks += 1
        return end_of_frames(data, limit)

    monkeypatch.setattr("execserver.relay.links.end_of_frames", counted)
    message = bytes(range(256)) * 1000
    scene.send(masked_frame(2, message), 1000)
    assert scene.owner.messages == [message]
    assert looks == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 150, 1000])
def test_frames_arrive_however_they_are_cut(scene: Scene, size: int) -> None:
    messages = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 400, b"", b"e" * 70]
    scene.send(b"".join(masked_frame(2, each) for each in messages), size)
    scene.send(masked_frame(2, b"f" * 70_000), 9973)
    assert scene.owner.messages == [*messages, b"f" * 70_000]
