from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import gevent
import pytest

from execserver.settings import Settings
from execserver.transports import ws_server
from execserver.transports.stdio import LineFraming
from execserver.transports.ws_server import Shared, WebSocketFraming, WebSocketTransport
from tests.support.greenlets import turns
from tests.support.waiting import wait_until
from tests.support.ws_peer import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, client_frame
from tests.transports.frames import FrameReader, ServerFrame

Pair = tuple[socket.socket, socket.socket]
UPGRADED_BY = "127.0.0.1:4321"


class FakeReceiver:
    """A fake connection: keeps what a carrier delivers."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ended_calls = 0
        self.on_message: Callable[[bytes], None] = lambda _message: None

    def receive(self, messages: list[bytes]) -> None:
        for message in messages:
            self.messages.append(message)
            self.on_message(message)

    def ended(self) -> None:
        self.ended_calls += 1


class Carried:
    """A carrier over a real connection, its fake receiver, and the peer's end."""

    def __init__(self, pair: Pair, early: bytes = b"", **settings: float) -> None:
        made = Settings(**settings)
        self.sock, self.peer = pair
        self.transport = WebSocketTransport(self.sock, UPGRADED_BY, made, Shared(made), early)
        self.outbox = self.transport.outbox
        self.receiver = FakeReceiver()
        self.reader = FrameReader(self.peer)
        self.transport.start(self.receiver)

    def send(self, *frames: bytes) -> None:
        """Let the peer send frames."""
        self.peer.sendall(b"".join(frames))

    def wait_for_messages(self, count: int) -> list[bytes]:
        """Wait until as many messages were delivered and return them."""
        wait_until(lambda: len(self.receiver.messages) >= count, pause=gevent.sleep)
        return self.receiver.messages

    @property
    def over(self) -> bool:
        """True once the carrier has closed its socket."""
        return self.sock.fileno() == -1

    def wait_until_over(self) -> None:
        """Wait until the carrier has closed its socket; the receiver has been told then."""
        wait_until(lambda: self.over, pause=gevent.sleep)
        assert self.receiver.ended_calls > 0


Carry = Callable[..., Carried]


@pytest.fixture
def carry(tcp_pair: Pair) -> Iterator[Carry]:
    """Start a carrier; it is ended after the test."""
    made: list[Carried] = []

    def start(early: bytes = b"", **settings: float) -> Carried:
        made.append(Carried(tcp_pair, early, **settings))
        return made[-1]

    yield start
    for each in made:
        each.transport.give_up()
        turns()


def test_text_and_binary_messages_are_delivered(carry: Carry) -> None:
    one = carry()
    one.send(client_frame(TEXT, b'{"a":1}'), client_frame(BINARY, b"{}"), client_frame(TEXT, b""))
    assert one.wait_for_messages(3) == [b'{"a":1}', b"{}", b""]
    assert one.receiver.ended_calls == 0


def test_a_message_in_fragments_is_one_message(carry: Carry) -> None:
    one = carry()
    one.send(
        client_frame(TEXT, b"a", final=False), client_frame(PING, b"?"), client_frame(CONTINUATION, b"b")
    )
    assert one.wait_for_messages(1) == [b"ab"]
    assert one.reader.wait_for(1) == [ServerFrame(PONG, b"?")]


def test_a_message_may_come_byte_by_byte(carry: Carry) -> None:
    one = carry()
    for byte in client_frame(TEXT, b"slow"):
        one.send(bytes([byte]))
        turns()
    assert one.wait_for_messages(1) == [b"slow"]


def test_more_than_one_read_takes_is_delivered_whole(carry: Carry) -> None:
    one = carry()
    message = bytes(range(256)) * 4096
    frame = memoryview(client_frame(BINARY, message))
    while len(frame):
        try:
            frame = frame[one.peer.send(frame) :]
        except BlockingIOError:
            turns()
    assert one.wait_for_messages(1) == [message]


def test_what_came_with_the_upgrade_comes_first(carry: Carry) -> None:
    late = client_frame(TEXT, b"late")
    one = carry(early=client_frame(TEXT, b"early") + late[:3])
    assert one.receiver.messages == [b"early"]
    one.send(late[3:])
    assert one.wait_for_messages(2) == [b"early", b"late"]


def test_replies_are_text_frames(carry: Carry) -> None:
    one = carry()
    one.outbox.send(b"{}")
    one.outbox.send(b"x" * 70_000)
    one.outbox.stream([b"a", b"b" * 200, b"c"])
    assert one.reader.wait_for(5) == [
        ServerFrame(TEXT, b"{}"),
        ServerFrame(TEXT, b"x" * 70_000),
        ServerFrame(TEXT, b"a", fin=False),
        ServerFrame(CONTINUATION, b"b" * 200, fin=False),
        ServerFrame(CONTINUATION, b"c"),
    ]


def test_the_framing_of_pieces() -> None:
    framing = WebSocketFraming()
    assert framing.whole(5) == (b"\x81\x05", b"")
    assert framing.piece(5, first=True, final=True) == (b"\x81\x05", b"")
    assert framing.piece(300, first=False, final=False) == (b"\x00\x7e\x01\x2c", b"")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 255, 256, 65_535])
def test_a_short_message_is_framed_as_any(size: int) -> None:
    message = b"m" * size
    for framing in (WebSocketFraming(), LineFraming()):
        before, after = framing.whole(size)
        assert framing.short(message) == before + message + after


def test_the_peers_address_is_in_answers_to_what_is_no_message(carry: Carry) -> None:
    text = "failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:4321"
    assert carry().transport.malformed_prefix == text


def test_empty_pings_are_sent_at_intervals(carry: Carry) -> None:
    one = carry(ping_interval_s=0.005)
    assert one.reader.wait_for(2)[:2] == [ServerFrame(PING, b"")] * 2


def test_a_peer_that_does_not_read_gets_no_pile_of_pings(carry: Carry) -> None:
    one = carry(ping_interval_s=0.001)
    one.outbox.send(b"x" * 10_000_000)
    queued = one.outbox.queued
    assert queued > 0
    gevent.sleep(0.02)
    assert one.outbox.queued <= queued


def test_a_peer_that_pings_and_does_not_read_gets_no_pile_of_pongs(carry: Carry) -> None:
    one = carry()
    one.outbox.send(b"x" * 10_000_000)
    queued = one.outbox.queued
    assert queued > 0
    flood = client_frame(PING, b"p" * 125) * 100
    for _ in range(50):
        one.send(flood)
        turns()
    one.send(client_frame(TEXT, b"behind"))
    assert one.wait_for_messages(1) == [b"behind"]
    assert 0 < one.outbox.queued - queued < 65 * 1024


def test_a_reader_gets_every_pong_again(carry: Carry) -> None:
    one = carry()
    for _ in range(3):
        one.send(client_frame(PING, b"p" * 125) * 600)  # 75 KB of pongs
        assert one.reader.wait_for(500)[-1] == ServerFrame(PONG, b"p" * 125)
        wait_until(lambda: not one.outbox.queued, pause=gevent.sleep)
        one.reader.frames()


def test_the_peers_close_is_answered_and_ends_the_connection(carry: Carry) -> None:
    one = carry()
    one.send(client_frame(TEXT, b"last"), client_frame(CLOSE, b"\x03\xe8bye"))
    assert one.reader.wait_for_end() == [ServerFrame(CLOSE, b"\x03\xe8bye")]
    one.wait_until_over()
    assert one.receiver.messages == [b"last"]


def test_answers_to_what_came_before_the_close_come_before_ours(carry: Carry) -> None:
    one = carry()
    one.receiver.on_message = one.outbox.send
    one.send(client_frame(TEXT, b"echo"), client_frame(CLOSE, b"\x03\xe8"))
    assert one.reader.wait_for_end() == [ServerFrame(TEXT, b"echo"), ServerFrame(CLOSE, b"\x03\xe8")]


def test_our_close_comes_behind_what_is_queued(carry: Carry) -> None:
    one = carry()
    one.outbox.send(b"last")
    one.transport.close(1008, "no such notification")
    one.outbox.send(b"too late")
    assert one.receiver.ended_calls == 1
    close = b"\x03\xf0no such notification"
    assert one.reader.wait_for(2) == [ServerFrame(TEXT, b"last"), ServerFrame(CLOSE, close)]
    one.peer.close()
    one.wait_until_over()


def test_nothing_is_delivered_after_our_close(carry: Carry) -> None:
    one = carry()
    one.transport.close(1001, "")
    one.send(client_frame(TEXT, b"late"), client_frame(CLOSE, b"\x03\xe9"))
    one.peer.shutdown(socket.SHUT_WR)
    one.wait_until_over()
    assert one.receiver.messages == []


def test_only_the_first_close_counts(carry: Carry) -> None:
    one = carry()
    one.transport.close(1001, "going")
    one.transport.close(1011, "again")
    one.peer.shutdown(socket.SHUT_WR)
    assert one.reader.wait_for_end() == [ServerFrame(CLOSE, b"\x03\xe9going")]
    one.transport.close(1011, "again")


def test_a_peer_that_does_not_answer_our_close_is_left(carry: Carry) -> None:
    one = carry(close_timeout_s=0.01)
    one.transport.close(1001, "")
    one.wait_until_over()
    assert one.receiver.ended_calls >= 1


def test_a_peer_that_does_not_read_our_close_is_left(carry: Carry) -> None:
    one = carry(close_timeout_s=0.01)
    one.outbox.send(b"x" * 10_000_000)
    one.transport.close(1001, "")
    one.wait_until_over()


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (client_frame(TEXT, b"\xff"), 1007),
        (b"\x81\x01x", 1002),
        (client_frame(0x3, b"x"), 1002),
        (client_frame(BINARY, b"x" * 101), 1009),
    ],
)
def test_what_is_no_good_frame_ends_the_connection(carry: Carry, frame: bytes, code: int) -> None:
    one = carry(max_frame_bytes=100)
    one.send(client_frame(TEXT, b"good"), frame, client_frame(TEXT, b"late"))
    one.peer.shutdown(socket.SHUT_WR)
    frames = one.reader.wait_for_end()
    assert [(frame.opcode, frame.payload[:2]) for frame in frames] == [(CLOSE, code.to_bytes(2, "big"))]
    one.wait_until_over()
    assert one.receiver.messages == [b"good"]


def test_a_peer_that_leaves_without_a_word_ends_the_connection(carry: Carry) -> None:
    one = carry()
    one.send(client_frame(TEXT, b"last"))
    one.peer.close()
    one.wait_until_over()
    assert one.receiver.messages == [b"last"]


def test_a_peer_that_resets_the_connection_ends_it(carry: Carry) -> None:
    one = carry()
    one.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    one.peer.close()
    one.wait_until_over()


def test_reading_stops_and_goes_on(carry: Carry) -> None:
    one = carry()
    one.transport.pause()
    one.send(client_frame(TEXT, b"waits"))
    turns(10)
    assert one.receiver.messages == []
    one.transport.resume()
    assert one.wait_for_messages(1) == [b"waits"]


def test_giving_up_releases_everything_once(carry: Carry) -> None:
    one = carry()
    one.outbox.send(b"x" * 10_000_000)
    one.transport.give_up()
    one.transport.give_up()
    assert one.over
    assert one.receiver.ended_calls == 1
    assert one.outbox.closed
    one.transport.resume()
    one.transport.close(1001, "")
    one.outbox.send(b"more")
    turns()


def test_a_goodbye_to_a_peer_that_is_gone_does_not_linger(
    carry: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[gevent.Greenlet[[], None]] = []

    def spawn(run: Callable[[], None]) -> None:
        spawned.append(gevent.spawn(run))

    monkeypatch.setattr(ws_server, "spawn", spawn)
    one = carry(close_timeout_s=60)
    one.outbox.send(b"x" * 10_000_000)
    one.transport.close(1001, "")
    turns()
    assert [each.ready() for each in spawned] == [False]
    one.transport.give_up()
    gevent.joinall(spawned, timeout=20)
    assert [each.ready() for each in spawned] == [True]
