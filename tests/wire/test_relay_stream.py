"""Two ends of a virtual stream: plain with whoever is plain, reliable between two of ours."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execserver.wire.noise_records import MAX_JSON_BYTES, StreamError
from execserver.wire.relay_frames import (
    RESET_HARNESS_LOST,
    AckFrame,
    Data,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from execserver.wire.relay_stream import HarnessStream, Route, StreamReset
from execserver.wire.reliability import IDLE_S, SILENCE_S, WINDOW_BYTES, WINDOW_RECORDS
from tests.conftest import LONG
from tests.wire.noise_vectors import identity
from tests.wire.relay_link import ANSWER, INITIALIZE, STREAM_ID, End, Link, open_ends


def opened(announce_harness: bool = True, announce_executor: bool = True) -> tuple[Link, End, End]:
    harness, executor = open_ends(announce_harness, announce_executor)
    link = Link(harness, executor)
    link.open()
    assert len(harness.received) == len(executor.received) == 1
    return link, harness, executor


def messages(count: int, size: int = 40, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [b"%d:" % number + rng.randbytes(rng.randint(0, size)) for number in range(count)]


def test_two_of_ours_agree_inside_the_channel() -> None:
    _, harness, executor = opened()
    assert harness.stream.is_reliable
    assert executor.stream.is_reliable
    assert msgspec.json.decode(executor.received[0]) == {
        "id": 1,
        "method": "initialize",
        "params": {"clientName": "c", "resumeSessionId": None, "relayReliability": 1},
    }
    assert msgspec.json.decode(harness.received[0]) == {
        "id": 1,
        "result": {"sessionId": "s", "relayReliability": 1},
    }


@pytest.mark.parametrize(
    ("harness_offers", "executor_accepts"), [(False, True), (True, False), (False, False)]
)
def test_with_a_plain_peer_every_frame_is_plain(harness_offers: bool, executor_accepts: bool) -> None:
    link, harness, executor = opened(harness_offers, executor_accepts)
    assert harness.received == [ANSWER]
    assert executor.received[0] == INITIALIZE or harness_offers
    assert not harness.stream.is_reliable
    assert not executor.stream.is_reliable
    for number, message in enumerate(messages(20)):
        for end, peer in (harness, executor), (executor, harness):
            end.stream.send(message, link.now)
            data = end.stream.next_frame(link.now)
            assert data is not None
            frame = decode_frame(data)
            assert (frame.ack, frame.ack_bits) == (0, 0)
            assert isinstance(frame.body, Data)
            assert frame.body.seq == number + 1
            assert end.stream.next_frame(link.now) is None
            peer.take(data, link.now)
    assert harness.received[1:] == executor.received[1:] == messages(20)
    assert harness.stream.deadline() is executor.stream.deadline() is None


@pytest.mark.parametrize("body", [AckFrame(), Resume(7), Heartbeat()])
def test_a_plain_end_ignores_what_the_reference_ignores(body: AckFrame | Resume | Heartbeat) -> None:
    link, harness, executor = opened(announce_harness=False)
    for end in (harness, executor):
        frame = RelayFrame(STREAM_ID, body, ack=77, ack_bits=2**32 - 1)
        assert end.stream.feed(frame, link.now) == []
        assert end.stream.next_frame(link.now) is None


def test_a_harness_begins_with_resume_and_handshake() -> None:
    route = Route("env", "reg", identity("responder_static").public, "authorization")
    stream = HarnessStream("s", identity("initiator_static"), route, 0.0)
    first, second = stream.next_frame(0.0), stream.next_frame(0.0)
    assert first is not None
    assert second is not None
    assert decode_frame(first) == RelayFrame("s", Resume(0))
    assert len(second) > 3568
    assert stream.next_frame(0.0) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (Reset("noise_relay_protocol_error"), "reset: noise_relay_protocol_error"),
        (Data(0, bytes(40)), "a record before the end of the handshake"),
    ],
)
def test_a_handshake_that_is_not_answered_ends_the_stream(body: Reset | Data, text: str) -> None:
    route = Route("env", "reg", identity("responder_static").public, "authorization")
    stream = HarnessStream("s", identity("initiator_static"), route, 0.0)
    for ignored in (AckFrame(), Heartbeat(), Resume(3)):
        assert stream.feed(RelayFrame("s", ignored), 0.0) == []
    with pytest.raises(StreamError, match=text):
        stream.feed(RelayFrame("s", body), 0.0)
    assert stream.next_frame(0.0) is None
    with pytest.raises(StreamError, match=text):
        stream.send(b"{}", 0.0)


def test_an_executor_resets_a_stream_it_cannot_read() -> None:
    link, _, executor = opened(announce_harness=False)
    with pytest.raises(StreamError, match="cannot be decrypted"):
        executor.stream.feed(RelayFrame(STREAM_ID, Data(1, bytes(40))), link.now)
    last = executor.stream.next_frame(link.now)
    assert last is not None
    assert decode_frame(last) == RelayFrame(STREAM_ID, Reset("noise_relay_protocol_error"))
    assert executor.stream.next_frame(link.now) is None


def test_a_plain_stream_ends_with_its_websocket() -> None:
    link, harness, executor = opened(announce_executor=False)
    for end in (harness, executor):
        with pytest.raises(StreamError, match="the websocket was lost"):
            end.stream.lost(link.now)
        assert end.stream.next_frame(link.now) is None


def test_a_relay_that_lost_the_harness_ends_a_plain_stream_only() -> None:
    link, _, executor = opened(announce_harness=False)
    with pytest.raises(StreamReset, match="harness_disconnected"):
        executor.stream.feed(RelayFrame(STREAM_ID, Reset(RESET_HARNESS_LOST)), link.now)
    link, harness, executor = opened()
    assert executor.stream.feed(RelayFrame(STREAM_ID, Reset(RESET_HARNESS_LOST)), link.now) == []
    executor.stream.send(b"{}", link.now)
    link.replace(harness)
    link.settle(5)
    assert harness.received[1:] == [b"{}"]


def test_a_lost_websocket_loses_no_message() -> None:
    link, harness, executor = opened()
    wanted = messages(200, 200)
    for start in range(0, 200, 10):
        link.settle(0.001)
        for message in wanted[start : start + 10]:
            harness.stream.send(message, link.now)
            executor.stream.send(message, link.now)
        link.pull()
        for _ in range(5):
            executor.take(executor.inbound.popleft(), link.now)
        link.replace(harness if start % 20 else executor)
    link.settle(10)
    assert harness.received[1:] == executor.received[1:] == wanted
    assert harness.stream.unacknowledged_bytes == executor.stream.unacknowledged_bytes == 0


def test_what_is_sent_again_are_the_same_bytes() -> None:
    link, harness, executor = opened()
    harness.stream.send(b"once", link.now)
    link.pull()
    (first,) = executor.inbound
    link.replace(harness)
    link.settle(0.01)
    assert executor.received[1:] == [b"once"]
    again: list[bytes] = []
    link, harness, executor = opened()
    harness.stream.send(b"once", link.now)
    link.pull()
    first_body = decode_frame(executor.inbound[0]).body
    link.replace(harness)
    for _ in range(3):
        link.pull()
        again += executor.inbound
        link.deliver()
    assert first_body in [decode_frame(frame).body for frame in again]
    assert first != b""


def test_the_window_is_bounded_and_the_rest_waits() -> None:
    link, harness, executor = opened()
    for _ in range(3):
        harness.stream.send(bytes(3 * 1024 * 1024), link.now)
    link.pull()
    assert WINDOW_BYTES <= harness.stream.unacknowledged_bytes < WINDOW_BYTES + 65536
    assert harness.stream.queued_bytes == 3 * 1024 * 1024
    link.settle(1)
    assert [len(message) for message in executor.received[1:]] == [3 * 1024 * 1024] * 3
    for _ in range(2 * WINDOW_RECORDS):
        harness.stream.send(b"{}", link.now)
    link.pull()
    assert len(executor.inbound) <= WINDOW_RECORDS + 2


def test_a_silent_peer_ends_the_stream_at_the_bound() -> None:
    link, harness, executor = opened()
    harness.stream.send(b"{}", link.now)
    link.pull()
    executor.inbound.clear()
    probes = 0
    while harness.error is None:
        due = harness.stream.deadline()
        assert due is not None
        link.now = due
        harness.tick(link.now)
        while (frame := harness.stream.next_frame(link.now)) is not None:
            probes += isinstance(decode_frame(frame).body, Heartbeat)
    assert "silent for 20 s" in str(harness.error)
    assert SILENCE_S <= link.now <= SILENCE_S + 0.1
    assert 3 <= probes <= 8
    assert executor.error is None


def test_a_lost_websocket_that_stays_lost_ends_the_stream_at_the_bound() -> None:
    link, harness, executor = opened()
    executor.stream.lost(link.now)
    assert executor.stream.deadline() == link.now + SILENCE_S
    executor.tick(link.now + SILENCE_S)
    assert "silent" in str(executor.error)
    assert harness.error is None


def test_an_idle_stream_asks_now_and_then_whether_there_is_anybody() -> None:
    link, harness, executor = opened()
    frames = link.frames
    link.settle(10 * IDLE_S)
    assert harness.error is None
    assert executor.error is None
    assert 10 <= link.frames - frames <= 60
    link.ends = (harness, harness)
    executor.inbound.clear()
    while harness.error is None and link.now < 1000:
        link.now += 1
        harness.tick(link.now)
        while harness.stream.next_frame(link.now):
            pass
    assert "silent" in str(harness.error)


def test_a_consumer_that_holds_is_waited_for() -> None:
    link, harness, executor = opened()
    harness.stream.hold(True)
    wanted = messages(300, 60_000)
    for message in wanted:
        executor.stream.send(message, link.now)
    link.settle(100)
    assert harness.received[1:] == []
    assert executor.error is None
    kept: list[bytes] = []
    for _ in range(20):
        kept += harness.stream.hold(False)
        harness.stream.hold(True)
        link.settle(1)
    kept += harness.stream.hold(False)
    link.settle(1)
    kept += harness.received[1:]
    assert kept == wanted


def test_a_consumer_that_holds_is_not_flooded() -> None:
    link, harness, executor = opened()
    harness.stream.hold(True)
    for _ in range(20):
        executor.stream.send(bytes(1024 * 1024), link.now)
    before = link.frames
    link.settle(200)
    assert harness.error is executor.error is None
    assert sum(map(len, harness.stream.hold(False))) < 2 * WINDOW_BYTES
    assert link.frames - before < 500


def test_a_plain_stream_nobody_reads_is_reset() -> None:
    link, harness, executor = opened(announce_harness=False)
    executor.stream.hold(True)
    for _ in range(128):
        harness.stream.send(b"{}", link.now)
    link.settle(0.1)
    assert executor.error is None
    assert len(executor.stream.hold(False)) == 128
    executor.stream.hold(True)
    for _ in range(129):
        harness.stream.send(b"{}", link.now)
    link.settle(0.1)
    assert "nobody has taken" in str(executor.error)
    assert isinstance(harness.error, StreamReset)


def test_a_message_that_is_too_long_ends_the_stream() -> None:
    link, harness, executor = opened()
    with pytest.raises(StreamError):
        executor.stream.send(bytes(MAX_JSON_BYTES + 1), link.now)
    link.settle(0.1)
    assert isinstance(harness.error, StreamReset)


def test_closing_a_reliable_stream_tells_the_peer() -> None:
    link, harness, executor = opened()
    harness.stream.close()
    link.settle(0.1)
    assert "closed" in str(executor.error)


@pytest.mark.parametrize("announce", [True, False])
def test_an_acknowledgement_of_the_future_ends_a_reliable_stream(announce: bool) -> None:
    link, harness, _ = opened(announce)
    frame = RelayFrame(STREAM_ID, AckFrame(), ack=9)
    if not announce:
        assert harness.stream.feed(frame, link.now) == []
        return
    with pytest.raises(StreamError, match="never sent"):
        harness.stream.feed(frame, link.now)


@pytest.mark.parametrize("answer", [b'{"id":1,"error":{"code":-32010,"message":"busy"}}', b"[]", b"{"])
def test_an_answer_that_is_no_result_accepts_nothing(answer: bytes) -> None:
    harness, executor = open_ends()
    link = Link(harness, executor)
    harness.stream.send(INITIALIZE, 0.0)
    link.settle(0.1)
    executor.stream.send(answer, 0.0)
    link.settle(0.1)
    assert harness.received == [answer]
    assert not harness.stream.is_reliable
    assert not executor.stream.is_reliable


@pytest.mark.timeout(300)
@settings(max_examples=300 if LONG else 50)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_whatever_happens_messages_arrive_once_and_in_order(seed: int, count: int) -> None:
    rng = random.Random(seed)
    link, harness, executor = opened()
    size = rng.choice([10, 1000, 70_000])
    count = min(count, 30) if size > 1000 else count
    wanted = messages(count, size, seed)
    left = {id(end): list(wanted) for end in link.ends}
    for _ in range(4 * count):
        end = rng.choice(link.ends)
        if left[id(end)] and rng.random() < 0.6 and end.error is None:
            end.stream.send(left[id(end)].pop(0), link.now)
        link.disturb(rng)
        for each in link.ends:
            assert each.stream.unacknowledged_bytes < WINDOW_BYTES + 65536
    for end in link.ends:
        for message in left[id(end)]:
            if end.error is None:
                end.stream.send(message, link.now)
    link.settle(120)
    for end in link.ends:
        found = end.received[1:]
        assert found == wanted[: len(found)]
        if harness.error is None and executor.error is None:
            assert found == wanted
    # Silence may have ended a stream, a disturbed order never does.
    for end in link.ends:
        assert end.error is None or "silent" in str(end.error) or isinstance(end.error, StreamReset)


@pytest.mark.timeout(300)
@settings(max_examples=400 if LONG else 50)
@given(st.integers(0, 2**32))
def test_hostile_frames_end_a_stream_or_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    link, harness, executor = opened(announce_harness=rng.random() < 0.5)
    wanted = messages(30, 200, seed)
    for message in wanted:
        if harness.error is None:
            harness.stream.send(message, link.now)
        link.pull()
        if executor.inbound:
            executor.inbound.append(mutated(rng, rng.choice(executor.inbound)))
        link.deliver_valid()
    found = executor.received[1:]
    assert found == wanted[: len(found)]


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed[: rng.choice([len(changed), rng.randint(1, len(changed))])])


def test_frames_are_what_encode_frame_makes() -> None:
    link, harness, _ = opened()
    harness.stream.send(b"{}", link.now)
    data = harness.stream.next_frame(link.now)
    assert data is not None
    assert encode_frame(decode_frame(data)) == data
