"""A peer that numbers its records from 1 and acknowledges them, as upstream proposes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from execserver.wire.acknowledged_records import (
    AGAIN_S,
    LOOK_S,
    WINDOW_BYTES,
    WINDOW_RECORDS,
    AcknowledgedRecords,
)
from execserver.wire.noise import Initiator, Responder, prologue
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.noise_records import RecordReceiver, RecordSender
from execserver.wire.relay_frames import (
    RESET_HARNESS_LOST,
    RESET_PROTOCOL_ERROR,
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
)
from execserver.wire.relay_stream import ExecutorStream, StreamError, StreamReset
from execserver.wire.reliability import ACK_DELAY_S, SILENCE_S
from tests.wire.relay_link import ANSWER, INITIALIZE, STREAM_ID

HARNESS, EXECUTOR = StaticKeys.generate(), StaticKeys.generate()
AGAIN = AGAIN_S + LOOK_S


class Peer:
    """The harness, by hand; `first` is the number of its first record."""

    def __init__(self, first: int = 1, *, numbered: bool = True) -> None:
        about = prologue("env", "reg", STREAM_ID)
        initiator = Initiator(HARNESS, EXECUTOR.public, about)
        responder = Responder(EXECUTOR, about)
        responder.read_message1(initiator.write_message1(b"authorization"))
        self.stream = ExecutorStream(STREAM_ID, responder, numbered=numbered)
        self.stream.open()
        answer = decode_frame(self.stream.next_frame(0.0) or b"")
        assert isinstance(answer.body, Handshake)
        assert (answer.ack, answer.ack_bits) == (0, 0)
        initiator.read_message2(answer.body.payload)
        self.sender, self.receiver = RecordSender(initiator.send), RecordReceiver(initiator.receive)
        self.first = first

    def seal(self, message: bytes) -> Data:
        (record,) = [Data(seq + self.first, payload) for seq, payload in self.sender.seal(message)]
        return record

    def feed(self, body: Body, now: float = 0.0, ack: int = 0, bits: int = 0) -> list[bytes]:
        return self.stream.feed(RelayFrame(STREAM_ID, body, ack, bits), now)

    def frames(self, now: float = 0.0) -> list[RelayFrame]:
        """Return all that the executor has to send."""
        return [decode_frame(frame) for frame in iter(lambda: self.stream.next_frame(now) or b"", b"")]

    def records(self, now: float = 0.0) -> list[int]:
        return [frame.body.seq for frame in self.frames(now) if isinstance(frame.body, Data)]

    def greeted(self) -> Peer:
        """Go through `initialize`, all of which is acknowledged."""
        assert self.feed(self.seal(INITIALIZE)) == [INITIALIZE]
        self.stream.send(ANSWER, 0.0)
        (answer,) = self.frames()
        assert isinstance(answer.body, Data)
        assert self.receiver.feed(answer.body.seq - 1, answer.body.payload) == [ANSWER]
        self.feed(AckFrame(), ack=1)
        return self


def test_such_a_peer_is_recognised_by_its_first_record_and_answered_alike() -> None:
    peer = Peer()
    assert peer.feed(peer.seal(INITIALIZE)) == [INITIALIZE]
    peer.stream.send(ANSWER, 0.0)
    (answer,) = peer.frames()
    assert isinstance(answer.body, Data)
    assert (answer.body.seq, answer.ack, answer.ack_bits) == (1, 1, 0)
    assert peer.receiver.feed(0, answer.body.payload) == [ANSWER]


@pytest.mark.parametrize("numbered", [False, True])
def test_a_plain_peer_gets_the_plain_protocol(numbered: bool) -> None:
    peer = Peer(0, numbered=numbered)
    assert peer.feed(peer.seal(INITIALIZE)) == [INITIALIZE]
    peer.stream.send(ANSWER, 0.0)
    (answer,) = peer.frames()
    assert isinstance(answer.body, Data)
    assert (answer.body.seq, answer.ack, answer.ack_bits) == (0, 0, 0)
    assert peer.stream.deadline() is None


def test_without_the_setting_nobody_is_recognised() -> None:
    peer = Peer(numbered=False)
    assert peer.feed(peer.seal(INITIALIZE)) == []
    assert peer.frames() == []


def test_a_record_that_is_not_sealed_as_the_first_recognises_nobody() -> None:
    """It waits for the record before it, as in the plain protocol; a later one does not change that."""
    peer = Peer(0)
    first, second = peer.seal(INITIALIZE), peer.seal(b"{}")
    assert second.seq == 1
    assert peer.feed(second) == []
    assert peer.feed(first) == [INITIALIZE, b"{}"]
    peer.stream.send(ANSWER, 0.0)
    assert peer.records() == [0]


def test_what_is_not_acknowledged_is_sent_again_as_the_same_bytes() -> None:
    peer = Peer()
    peer.feed(peer.seal(INITIALIZE))
    peer.stream.send(ANSWER, 0.0)
    (sent,) = peer.frames()
    peer.stream.tick(AGAIN_S - 0.01)
    assert peer.frames(AGAIN_S - 0.01) == []
    assert peer.stream.deadline() == pytest.approx(AGAIN)
    peer.stream.tick(AGAIN)
    (again,) = peer.frames(AGAIN)
    assert again.body == sent.body
    peer.feed(AckFrame(), AGAIN, ack=1)
    peer.stream.tick(3 * AGAIN)
    assert peer.frames(3 * AGAIN) == []
    assert peer.stream.deadline() is None


def test_only_what_is_missing_is_sent_again() -> None:
    peer = Peer().greeted()
    for number in range(4):
        peer.stream.send(b"%d" % number, 1.0)
    assert peer.records(1.0) == [2, 3, 4, 5]
    peer.feed(AckFrame(), 1.0, ack=2, bits=0b010)  # 2 in order, and 4: bit i is the record 3 + i
    peer.stream.tick(1.0 + AGAIN)
    assert peer.records(1.0 + AGAIN) == [3, 5]


def test_a_full_window_waits() -> None:
    peer = Peer().greeted()
    for number in range(100):
        peer.stream.send(b"%d" % number, 1.0)
    assert peer.records(1.0) == list(range(2, 2 + WINDOW_RECORDS))
    peer.feed(AckFrame(), 1.0, ack=11)
    assert peer.records(1.0) == list(range(34, 44))
    wide = Peer().greeted()
    wide.stream.send(b"x" * 4_000_000, 1.0)
    assert len(wide.records(1.0)) == WINDOW_RECORDS
    assert wide.stream.unacknowledged_bytes <= WINDOW_BYTES


def test_a_gap_is_told_at_once_and_filled() -> None:
    peer = Peer().greeted()
    two, three, four = (peer.seal(b"%d" % number) for number in (2, 3, 4))
    assert peer.feed(three, 1.0) == []
    (told,) = peer.frames(1.0)
    assert (told.body, told.ack, told.ack_bits) == (AckFrame(), 1, 0b10)
    assert peer.feed(two, 1.0) == [b"2", b"3"]
    assert peer.feed(two, 1.0) == []  # a copy: its acknowledgement was lost
    (told,) = peer.frames(1.0)
    assert (told.ack, told.ack_bits) == (3, 0)
    assert peer.feed(four, 2.0) == [b"4"]
    assert peer.frames(2.0) == []
    peer.stream.tick(2.0 + ACK_DELAY_S)
    assert [frame.ack for frame in peer.frames(2.0 + ACK_DELAY_S)] == [4]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda peer: peer.feed(AckFrame(), ack=0, bits=1),
        lambda peer: peer.feed(AckFrame(), ack=2),
        lambda peer: peer.feed(Data(0, b"x" * 32)),
        lambda peer: peer.feed(Data(2, b"x" * 32)),
    ],
)
def test_what_breaks_the_rules_ends_the_stream(wrong: Callable[[Peer], object]) -> None:
    peer = Peer().greeted()
    with pytest.raises(StreamError):
        wrong(peer)
    assert [frame.body for frame in peer.frames()] == [Reset(RESET_PROTOCOL_ERROR)]


def test_nothing_survives_the_websocket() -> None:
    peer = Peer().greeted()
    with pytest.raises(StreamError):
        peer.stream.lost(1.0)
    other = Peer().greeted()
    with pytest.raises(StreamReset):
        other.feed(Reset(RESET_HARNESS_LOST), 1.0)


def test_frames_of_our_own_reliability_mean_nothing() -> None:
    peer = Peer().greeted()
    assert peer.feed(Resume(0), 1.0) == []
    assert peer.feed(Heartbeat(), 1.0) == []
    assert peer.frames(1.0) == []
    peer.stream.close()
    assert peer.frames(1.0) == []


def test_an_offer_of_our_own_reliability_is_not_taken() -> None:
    peer = Peer()
    offer = INITIALIZE.replace(b'"params":{', b'"params":{"relayReliability":1,')
    assert peer.feed(peer.seal(offer)) == [offer]
    peer.stream.send(ANSWER, 0.0)
    (answer,) = peer.frames()
    assert isinstance(answer.body, Data)
    assert peer.receiver.feed(0, answer.body.payload) == [ANSWER]


def test_a_peer_that_acknowledges_nothing_is_given_up() -> None:
    peer = Peer().greeted()
    peer.stream.send(b"1", 1.0)
    peer.frames(1.0)
    peer.feed(AckFrame(), 5.0, ack=1)
    peer.stream.tick(1.0 + SILENCE_S - 0.1)
    assert peer.stream.error is None
    with pytest.raises(StreamError, match="acknowledged nothing"):
        peer.stream.tick(1.0 + SILENCE_S)


@pytest.mark.parametrize("seed", range(6))
def test_everything_arrives_once_and_in_order_over_a_link_that_loses_and_repeats(seed: int) -> None:
    """The peer keeps its own state by the same rules, in its own numbers."""
    numbers, peer, now = random.Random(seed), Peer(), 0.0
    state = AcknowledgedRecords(peer.receiver, now)
    to_send = [INITIALIZE, *(b"m%d" % number for number in range(80))]
    arrived: list[bytes] = []
    returned: list[bytes] = []

    def lossy(frame: RelayFrame) -> list[RelayFrame]:
        return [frame] * numbers.choice((0, 1, 1, 1, 2))

    def say(body: Body) -> None:
        ack, bits = state.stamp()
        for frame in lossy(RelayFrame(STREAM_ID, body, ack, bits << 1 & 0xFFFFFFFF)):
            for message in peer.stream.feed(frame, now):
                arrived.append(message)
                peer.stream.send(b"answer to " + message, now)

    first = peer.seal(to_send.pop(0))
    state.sent(0, first.payload, now)
    peer.feed(first)
    arrived.append(INITIALIZE)
    peer.stream.send(b"answer to " + INITIALIZE, now)
    while (len(arrived), len(returned)) < (81, 81) or len(returned) < 81:
        now += 0.02
        assert now < 120
        state.tick(now)
        peer.stream.tick(now)
        while (again := state.take_again()) is not None:
            say(Data(again[0] + 1, again[1]))
        if to_send and state.has_room:
            record = peer.seal(to_send.pop(0))
            state.sent(record.seq - 1, record.payload, now)
            say(record)
        if state.take_control(now) is not None:
            say(AckFrame())
        for told in peer.frames(now):
            for frame in lossy(told):
                state.heard(frame.ack, frame.ack_bits >> 1, peer.sender.next_seq, now)
                if isinstance(frame.body, Data):
                    before = peer.receiver.next_seq
                    returned += peer.receiver.feed(frame.body.seq - 1, frame.body.payload)
                    state.received(frame.body.seq - 1 >= before, now)
    wanted = [INITIALIZE, *(b"m%d" % number for number in range(80))]
    assert arrived == wanted
    assert returned == [b"answer to " + message for message in wanted]
