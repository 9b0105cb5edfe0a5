"""What the executor does with each frame, row by row of the contract's table (remote mode)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import gevent
import pytest

from execserver.remote.fair_writer import URGENT_FRAMES
from execserver.transports.outbox import HIGH_WATER_BYTES
from execserver.wire.close_codes import INVALID_DATA, POLICY_VIOLATION
from execserver.wire.noise_records import MAX_JSON_BYTES
from execserver.wire.relay_frames import (
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    encode_frame,
)
from tests.remote.scene import Harness, Scene, never_answers, works

LONG = os.environ.get("EXECSERVER_LONG") == "1"
HOSTILE_FRAMES = 10_000 if LONG else 600


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A table with a websocket."""
    scene = Scene()
    yield scene
    scene.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        encode_frame(RelayFrame("a", Heartbeat())).replace(b"\x08\x01", b"\x08\x02"),
        b"\x08\x01\x12\x01a",
        b"\x08\x01\x12\x01 \x4a\x00",
    ],
)
def test_what_is_no_frame_is_dropped(scene: Scene, data: bytes) -> None:
    harness = Harness(scene, "a").open()
    assert not scene.table.take(data)
    assert scene.is_silent()
    assert works(scene, harness)


def test_data_for_nobody_is_reset(scene: Scene) -> None:
    scene.take("nobody", Data(0, b"x" * 32))
    assert scene.is_reset("nobody")


@pytest.mark.parametrize(
    "wrong",
    [
        Data(0, b"x" * 40),  # forged
        Data(0, b"short"),
        Data(65, b"x" * 40),  # too far ahead
        Data(0, b"x" * 65536),
    ],
)
def test_a_record_that_is_wrong_ends_its_stream_only(scene: Scene, wrong: Data) -> None:
    other, harness = Harness(scene, "a").open(), Harness(scene, "b").open()
    scene.take("b", wrong)
    assert scene.is_reset("b")
    assert scene.clients["b"].has_ended
    assert scene.clients["b"].transport.outbox.closed
    assert not scene.clients["a"].has_ended
    assert works(scene, other)
    scene.take("b", harness.seal(b"{}")[0])
    assert scene.is_reset("b")
    assert works(scene, Harness(scene, "b").open())  # the id is free again


def test_records_out_of_order_are_put_in_order(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    records = [harness.seal(b'{"id":%d}' % number)[0] for number in range(60)]
    random.Random(1).shuffle(records)
    for record in [*records, *records]:
        scene.take("a", record)
    assert scene.clients["a"].messages == [b'{"id":%d}' % number for number in range(60)]
    assert scene.is_silent()


def test_acknowledgements_are_tolerated(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    (record,) = harness.seal(b'{"id":1}')
    scene.table.take(encode_frame(RelayFrame("a", record, 77, 2**32 - 1)))
    for body in (AckFrame(), Resume(0), Heartbeat()):
        for name in ("a", "unknown"):
            scene.take(name, body)
    assert scene.is_silent()
    assert works(scene, harness)


def test_a_resume_of_a_stream_that_is_gone_is_told(scene: Scene) -> None:
    scene.take("gone", Resume(5))
    assert scene.is_reset("gone")


def test_a_reset_ends_a_stream_without_an_answer(scene: Scene) -> None:
    Harness(scene, "a").open()
    scene.take("a", Reset("whatever"))
    assert scene.is_silent()
    assert scene.clients["a"].has_ended
    assert scene.table.count == 0
    scene.take("unknown", Reset("whatever"))
    assert scene.is_silent()


def test_losing_the_websocket_ends_plain_streams_and_forgets_handshakes(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    scene.judge = never_answers
    Harness(scene, "b").begin()
    gevent.sleep(0)
    scene.table.detach()
    assert scene.clients["a"].has_ended
    assert scene.table.count == 0
    scene.attach()
    scene.take("a", harness.seal(b"{}")[0])
    assert scene.is_reset("a")
    assert scene.is_silent()


def test_what_others_write_becomes_no_line_of_the_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "execserver")
    stream_id = "a\nERROR forged\x1b[31m" + "x" * 300
    Harness(scene, stream_id).open()
    scene.take(stream_id, Reset("why\nERROR forged"))
    assert caplog.messages[0].startswith("a harness connected (a?ERROR forged?[31mxxx")
    assert "the stream was reset: why?ERROR forged" in caplog.messages[1]
    assert all(len(line) < 500 and line.isprintable() for line in caplog.messages)


def test_resets_are_dropped_when_too_many_wait(scene: Scene) -> None:
    for _ in range(URGENT_FRAMES + 50):
        scene.take("nobody", Data(0, b"x" * 32))
    scene.answers("nobody", URGENT_FRAMES)
    assert scene.is_silent()


def test_a_violation_ends_a_stream_in_silence_once_all_is_written(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    client = scene.clients["a"]
    client.transport.outbox.send(b'{"id":1}')
    client.transport.close(POLICY_VIOLATION, "a response that answers no request of the server")
    client.transport.outbox.send(b"late")
    assert harness.read(1) == [b'{"id":1}']
    assert scene.is_silent()
    assert client.has_ended
    harness.send(b"{}")
    assert scene.is_reset("a")


def test_a_message_that_is_none_resets_the_stream(scene: Scene) -> None:
    Harness(scene, "a").open()
    scene.clients["a"].transport.close(INVALID_DATA, "no JSON")
    assert scene.is_reset("a")
    assert scene.clients["a"].has_ended


def test_a_message_above_the_limit_resets_the_stream(scene: Scene) -> None:
    Harness(scene, "a").open()
    scene.clients["a"].transport.outbox.stream(iter([b"x" * (MAX_JSON_BYTES // 2)] * 3))
    assert scene.is_reset("a")
    assert scene.clients["a"].has_ended


def test_a_message_in_pieces_arrives_whole(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    scene.clients["a"].transport.outbox.stream(iter([b"a" * 100_000, b"b" * 100_000]))
    assert harness.read(1) == [b"a" * 100_000 + b"b" * 100_000]


def test_a_paused_stream_is_held_back_and_others_are_not(scene: Scene) -> None:
    slow, other = Harness(scene, "a").open(), Harness(scene, "b").open()
    client = scene.clients["a"]
    client.transport.pause()
    for number in range(128):
        slow.send(b"%d" % number)
    assert client.messages == []
    assert works(scene, other)
    client.transport.resume()
    assert client.messages == [b"%d" % number for number in range(128)]
    assert works(scene, slow)
    client.transport.pause()
    for number in range(129):
        slow.send(b"%d" % number)
    assert scene.is_reset("a")
    assert works(scene, other)


def test_a_flood_does_not_delay_another_streams_keystroke(scene: Scene) -> None:
    flood, quick = Harness(scene, "f").open(), Harness(scene, "q").open()
    outbox = scene.clients["f"].transport.outbox
    for _ in range(100):
        outbox.send(b"x" * 60_000)
    assert not outbox.has_room
    scene.clients["q"].transport.outbox.send(b'"echo"')
    quick.read(1)
    flood.read(100)
    assert scene.order[2:].index("q") <= 3  # behind the two answers to the handshakes


def test_who_waits_for_room_goes_on_when_there_is_some_and_at_the_end(scene: Scene) -> None:
    harness = Harness(scene, "a").open()
    outbox = scene.clients["a"].transport.outbox
    outbox.send(b"x" * (HIGH_WATER_BYTES + 1))
    waiting = gevent.spawn(outbox.wait_for_room)
    assert waiting.get(timeout=20) is True
    harness.read(1)
    scene.table.writer = None
    outbox.send(b"x" * (HIGH_WATER_BYTES + 1))
    outbox.send(b"y")
    waiting = gevent.spawn(outbox.wait_for_room)
    gevent.sleep(0)
    assert not waiting.ready()
    scene.table.detach()
    assert waiting.get(timeout=20) is False


def hostile(random_: random.Random, sealed: list[bytes]) -> bytes:
    """Return a frame that somebody made to do harm: random bytes, or a damaged copy of a real one."""
    kind = random_.randrange(4)
    if kind == 0:
        return random_.randbytes(random_.randrange(200))
    if kind == 1:
        bodies: list[Body] = [
            Data(random_.randrange(2**32 - 1), random_.randbytes(40)),
            Reset("x"),
            Resume(9),
        ]
        return encode_frame(RelayFrame(f"h{random_.randrange(20)}", random_.choice(bodies)))
    if kind == 2:
        return encode_frame(RelayFrame(f"h{random_.randrange(20)}", Handshake(random_.randbytes(3600))))
    data = bytearray(random_.choice(sealed))
    for _ in range(random_.randrange(1, 4)):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    return bytes(data)


def test_hostile_frames_harm_only_their_streams(scene: Scene) -> None:
    victim = Harness(scene, "steady").open()
    random_ = random.Random(5)
    broken = Harness(scene, "broken").open()
    sealed = [encode_frame(RelayFrame("broken", record)) for record in broken.seal(b"{}" * 1000)]
    for number in range(HOSTILE_FRAMES):
        data = hostile(random_, sealed)
        if b"steady" not in data:
            scene.table.take(data)
        if number % 50 == 0:
            assert works(scene, victim)
            for frame in [each for each in scene.sent if each.stream_id != "steady"]:
                scene.sent.remove(frame)
    assert works(scene, victim)
    assert not scene.clients["steady"].has_ended
