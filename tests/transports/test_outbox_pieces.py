"""A message that is produced in pieces while its peer reads."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from execserver.transports.outbox import HIGH_WATER_BYTES, Outbox
from tests.support.greenlets import turns
from tests.support.waiting import wait_until
from tests.transports.outboxes import (
    MUCH,
    Pair,
    outbox,
    packets,
    read_all,
)
from tests.transports.wires import take

__all__ = ["outbox", "packets"]


def test_a_message_in_pieces_is_one_message(pair: Pair, outbox: Outbox) -> None:
    for pieces in ([], [b"a"], [b"a", b"b"], [b"a", b"b", b"c"]):
        outbox.stream(pieces)
    assert read_all(outbox, pair[1]) == b"()(a)(a|b)(a|b|c)"


def test_other_messages_queue_up_behind_the_pieces_and_control_frames_between_them(
    pair: Pair, outbox: Outbox
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        outbox.send(b"one")
        yield b"b"
        yield b"c"
        outbox.send_control(b"ping")
        outbox.send(b"two")
        yield b"d"

    outbox.stream(pieces())
    outbox.send(b"three")
    assert read_all(outbox, pair[1]) == b"(a|bping|c|d)<one><two><three>"


def test_what_is_held_back_does_not_stop_the_pieces(pair: Pair, outbox: Outbox) -> None:
    """It can only leave after the last piece, so the pieces must not wait for its room."""

    def pieces() -> Iterator[bytes]:
        yield b"a"
        outbox.send(MUCH)
        producers.append(gevent.spawn(outbox.wait_for_room))
        yield b"b"
        turns()
        assert not producers[0].ready()
        yield b"c"

    producers: list[gevent.Greenlet[[], bool]] = []
    outbox.stream(pieces())
    assert read_all(outbox, pair[1]) == b"(a|b|c)<" + MUCH + b">"
    assert producers[0].get(timeout=20)


def test_pieces_are_produced_as_the_peer_reads(pair: Pair, outbox: Outbox) -> None:
    produced = 0

    def pieces() -> Iterator[bytes]:
        nonlocal produced
        for _ in range(40):
            produced += 1
            yield b"p" * 64 * 1024

    sender = gevent.spawn(outbox.stream, pieces())
    turns(10)
    assert produced < 20
    assert outbox.queued < 2 * HIGH_WATER_BYTES
    data = bytearray()

    def sent() -> bool:
        data.extend(take(pair[1]))
        return sender.ready() and not outbox.queued

    wait_until(sent, pause=gevent.sleep)
    assert len(data + take(pair[1])) == 40 * (64 * 1024 + 1) + 1


def test_others_get_turns_between_pieces(pair: Pair, outbox: Outbox) -> None:
    order: list[str] = []

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            order.append(f"piece {number}")
            yield b"x"

    gevent.spawn(outbox.stream, pieces())
    gevent.spawn(order.append, "other")
    turns()
    assert order.index("other") < order.index("piece 2")


def test_a_failing_producer_leaves_half_a_message_and_nothing_behind_it(pair: Pair, outbox: Outbox) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        yield b"b"
        outbox.send(b"held back")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        outbox.stream(pieces())
    outbox.finish()
    outbox.send_control(b"close")
    assert read_all(outbox, pair[1]) == b"(aclose"
