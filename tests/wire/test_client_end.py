"""The client's end of a WebSocket, fed by a server of the `websockets` library that has no socket either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.uri import parse_uri

from execserver.wire.client_end import BINARY_ONLY, TEXT_TOO, ClientEnd


class Pair:
    """A client's end and its server."""

    def __init__(self, takes: frozenset[Opcode] = TEXT_TOO) -> None:
        protocol = ClientProtocol(parse_uri("ws://x/"), max_size=100, state=OPEN)
        self.messages: list[bytes] = []
        self.pongs: list[None] = []
        self.client = ClientEnd(protocol, takes, self.messages.append, lambda: self.pongs.append(None))
        self.server = Protocol(SERVER, state=OPEN)

    def flow(self) -> None:
        """Give the client what the server has sent, and the server its answers."""
        for data in self.client.feed(b"".join(self.server.data_to_send())):
            self.server.receive_data(data)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends, of which the client takes text and binary messages."""
    pair = Pair()
    yield pair
    pair.client.let_go()


def test_messages_come_whole_however_they_were_cut(pair: Pair) -> None:
    pair.server.send_text(b"one")
    pair.server.send_binary(b"t", fin=False)
    pair.server.send_continuation(b"w", fin=False)
    pair.server.send_ping(b"!")
    pair.server.send_continuation(b"o", fin=True)
    for byte in b"".join(pair.server.data_to_send()):
        for data in pair.client.feed(bytes((byte,))):
            pair.server.receive_data(data)
    assert pair.messages == [b"one", b"two"]
    (answer,) = pair.server.events_received()
    assert isinstance(answer, Frame)
    assert answer.opcode is Opcode.PONG


def test_messages_of_another_kind_are_left_out_with_all_their_fragments() -> None:
    pair = Pair(BINARY_ONLY)
    pair.server.send_text(b"no", fin=False)
    pair.server.send_continuation(b"no", fin=True)
    pair.server.send_binary(b"yes")
    pair.flow()
    assert pair.messages == [b"yes"]


def test_a_pong_is_told_and_counts_as_a_frame(pair: Pair) -> None:
    pair.server.send_pong(b"")
    pair.flow()
    assert (len(pair.pongs), pair.client.saw_frames) == (1, True)
    pair.client.feed(b"\x81")
    assert not pair.client.saw_frames


def test_a_goodbye_is_answered_and_told_with_its_code(pair: Pair) -> None:
    pair.server.send_close(1001)
    pair.flow()
    assert (pair.client.is_open, pair.client.close_code, pair.client.broken_rule) == (False, 1001, None)
    assert pair.server.close_rcvd is not None


def test_our_goodbye_is_that_of_an_end_in_good_order(pair: Pair) -> None:
    pair.server.receive_data(pair.client.goodbye())
    assert pair.server.close_rcvd is not None
    assert pair.server.close_rcvd.code == 1000
    assert not pair.client.is_open


def test_a_message_above_the_limit_breaks_a_rule(pair: Pair) -> None:
    pair.server.send_binary(bytes(101))
    pair.flow()
    assert pair.client.broken_rule is not None
    assert pair.messages == []
