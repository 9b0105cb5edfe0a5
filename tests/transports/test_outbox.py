from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterable

import gevent
import pytest
from gevent.event import Event

from execserver.transports.outbox import (
    HASTE_BYTES,
    HASTE_UNREAD_BYTES,
    HIGH_WATER_BYTES,
    UNREAD_BYTES,
    Outbox,
)
from tests.support.greenlets import is_active, turns
from tests.transports.outboxes import (
    LOW_WATER_BYTES,
    MUCH,
    Pair,
    fill,
    outbox,
    outbox_on,
    packets,
    read_all,
    waiters,
)
from tests.transports.wires import take, take_packets

__all__ = ["outbox", "packets"]


def test_what_is_queued_in_one_turn_leaves_in_one_write(packets: Pair) -> None:
    outbox = outbox_on(packets[0])
    outbox.send(b"answer")
    outbox.send_parts(b"noti", b"fication")
    outbox.send_control(b"ping")
    assert take_packets(packets[1]) == []
    turns()
    assert take_packets(packets[1]) == [b"<answer><notification>ping"]
    outbox.send(b"next")
    turns()
    assert take_packets(packets[1]) == [b"<next>"]
    outbox.send_binary(b"in ", b"binary")
    turns()
    assert take_packets(packets[1]) == [b"[in binary]"]


def test_flush_does_not_wait_for_the_loop(packets: Pair) -> None:
    outbox = outbox_on(packets[0])
    outbox.send(b"now")
    outbox.flush()
    assert take_packets(packets[1]) == [b"<now>"]
    turns()
    assert take_packets(packets[1]) == []


def test_a_large_message_leaves_at_once_with_what_is_before_it(packets: Pair) -> None:
    outbox = outbox_on(packets[0])
    large = b"l" * 32 * 1024
    outbox.send(b"small")
    outbox.send_parts(b"head", large)
    assert take_packets(packets[1]) == [b"<small><head" + large + b">"]


def test_many_messages_take_few_writes(packets: Pair) -> None:
    outbox = outbox_on(packets[0])
    messages = [b"%d" % number for number in range(200)]
    for message in messages:
        outbox.send(message)
    turns()
    written = take_packets(packets[1])
    assert len(written) <= 4
    assert b"".join(written) == b"".join(b"<" + message + b">" for message in messages)


def test_partial_writes_lose_and_repeat_nothing(pair: Pair, outbox: Outbox) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rng = random.Random(7)
    messages = [rng.randbytes(rng.choice((1, 100, 5000, 40_000))) for _ in range(60)]
    for message in messages:
        outbox.send_parts(message[:50], message[50:])
    assert outbox.queued > 0
    assert read_all(outbox, pair[1]) == b"".join(b"<" + message + b">" for message in messages)


def test_above_the_bound_it_still_takes_messages(pair: Pair, outbox: Outbox) -> None:
    fill(outbox)
    assert not outbox.has_room
    outbox.send(b"an answer")
    assert read_all(outbox, pair[1]) == b"<" + MUCH + b"><an answer>"
    assert outbox.has_room


def test_with_room_nobody_waits(outbox: Outbox) -> None:
    assert outbox.wait_for_room()
    outbox.send(b"x" * 1000)
    assert outbox.wait_for_room()
    assert outbox.queued == 1002  # and nothing was written before its time


def may_go_on(outbox: Outbox) -> bool:
    return outbox.may_go_on


def test_who_may_go_on_would_not_wait(pair: Pair) -> None:
    unread = 0
    outbox = outbox_on(pair[0], unread=lambda: unread)
    assert may_go_on(outbox)
    outbox.send(b"x" * 30_000)
    assert may_go_on(outbox)
    unread = UNREAD_BYTES + 1  # now a look at the peer's window is due, and would wait
    for _ in range(5):
        outbox.send(b"x" * 30_000)
    assert outbox.has_room
    assert not may_go_on(outbox)
    unread = 0
    assert may_go_on(outbox)
    outbox.send(MUCH)
    assert not may_go_on(outbox)
    outbox.close()
    assert not may_go_on(outbox)


def test_amid_a_flood_less_may_be_ahead_of_an_answer(pair: Pair) -> None:
    unread = HASTE_UNREAD_BYTES + 1
    outbox = outbox_on(pair[0], unread=lambda: unread)

    def flood() -> bool:
        """Queue and send what makes a look at the peer's window due; return whether more may follow."""
        outbox.send(b"x" * 150_000)
        take(pair[1])
        assert not outbox.queued
        return outbox.may_go_on

    assert flood()
    outbox.asked()
    assert not flood()
    unread = HASTE_UNREAD_BYTES
    assert flood()
    for _ in range(HASTE_BYTES // 150_000 + 1):
        assert flood()
    unread = HASTE_UNREAD_BYTES + 1  # so much output later, speed is worth more
    assert flood()
    outbox.close()


def test_a_flood_in_haste_queues_less(pair: Pair) -> None:
    outbox = outbox_on(pair[0], unread=lambda: HASTE_UNREAD_BYTES + 1)
    outbox.send(b"x" * 40_000)
    take(pair[1])
    outbox.asked()
    fill(outbox)
    read_until = 100_000
    data = b""
    while outbox.queued > read_until:
        data += take(pair[1])
        gevent.sleep(0.001)
    assert outbox.has_room
    assert not may_go_on(outbox)
    outbox.close()


def test_a_request_amid_no_output_costs_no_look(pair: Pair) -> None:
    def unread() -> int:
        raise AssertionError("looked")

    outbox = outbox_on(pair[0], unread=unread)
    for _ in range(100):
        outbox.send(b"x" * 1000)
        outbox.asked()
    outbox.close()


def test_what_is_held_leaves_in_one_write_when_it_is_released(packets: Pair) -> None:
    outbox = outbox_on(packets[0])
    outbox.hold()
    outbox.send(b"answer")
    outbox.send(b"notification")
    turns()
    assert take_packets(packets[1]) == []
    outbox.release()
    assert take_packets(packets[1]) == [b"<answer><notification>"]
    outbox.send(b"later")
    turns()
    assert take_packets(packets[1]) == [b"<later>"]
    outbox.close()


def test_room_is_made_by_writing_before_it_is_waited_for(outbox: Outbox) -> None:
    for _ in range(12):
        outbox.send(b"x" * 30_000)  # below what is written at once
    assert outbox.queued > HIGH_WATER_BYTES
    assert outbox.wait_for_room()
    assert outbox.queued < HIGH_WATER_BYTES


def test_producers_wait_above_the_high_and_wake_at_the_low_mark(pair: Pair, outbox: Outbox) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    fill(outbox)
    producers = [gevent.spawn(outbox.wait_for_room) for _ in range(2)]
    turns()
    while outbox.queued > LOW_WATER_BYTES:
        assert not any(producer.ready() for producer in producers)
        take(pair[1], 16 * 1024)
        turns()
    gevent.joinall(producers, timeout=20)
    assert [producer.value for producer in producers] == [True, True]


def test_finish_takes_no_more_messages_but_writes_what_is_queued(pair: Pair, outbox: Outbox) -> None:
    outbox.send(b"last")
    outbox.finish()
    outbox.send(b"too late")
    outbox.send_control(b"close")
    assert outbox.closed
    assert not outbox.wait_for_room()
    turns()
    assert take(pair[1]) == b"<last>close"


@pytest.mark.parametrize("end", [Outbox.finish, Outbox.close])
def test_everybody_who_waits_is_woken_at_the_end(
    pair: Pair, outbox: Outbox, end: Callable[[Outbox], None]
) -> None:
    fill(outbox)
    waiting = waiters(outbox)
    turns()
    assert not any(each.ready() for each in waiting)
    end(outbox)
    gevent.joinall(waiting, timeout=20)
    assert [each.value for each in waiting] == [False, None]


def test_nothing_is_written_after_close(pair: Pair) -> None:
    outbox = outbox_on(pair[0])
    fill(outbox)
    outbox.send(b"queued")
    outbox.close()
    assert not is_active(outbox._watcher), "the loop would watch a closed descriptor"
    reader, writer = os.pipe()
    number = pair[0].detach()
    os.dup2(writer, number)  # as whoever opens next gets the same number
    try:
        outbox.send(b"more")
        outbox.send_control(b"more")
        outbox.flush()
        take(pair[1])
        turns()
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 100)
        assert outbox.queued == 0
    finally:
        for descriptor in {reader, writer, number}:
            os.close(descriptor)


def test_a_peer_that_is_gone_is_told_once(pair: Pair) -> None:
    told: list[str] = []
    outbox = outbox_on(pair[0], lambda: told.append("gone"))
    pair[1].close()
    outbox.send(b"a")
    turns()
    outbox.send(b"b")
    outbox.send_control(b"c")
    outbox.flush()
    turns()
    assert told == ["gone"]
    assert (outbox.closed, outbox.queued, outbox.wait_for_room()) == (True, 0, False)


def test_a_peer_that_goes_while_it_is_waited_for_ends_the_wait(pair: Pair) -> None:
    told: list[str] = []
    outbox = outbox_on(pair[0], lambda: told.append("gone"))
    fill(outbox)
    waiting = waiters(outbox)
    turns()
    pair[1].close()
    gevent.joinall(waiting, timeout=20)
    assert ([each.value for each in waiting], told) == ([False, None], ["gone"])


def test_waiting_until_all_is_written(pair: Pair, outbox: Outbox) -> None:
    fill(outbox)
    assert not outbox.wait_until_empty(0.01)
    waiter = gevent.spawn(outbox.wait_until_empty, 5.0)
    assert read_all(outbox, pair[1]) == b"<" + MUCH + b">"
    assert waiter.get(timeout=20)


def test_every_write_is_reported(pair: Pair) -> None:
    reports: list[str] = []
    outbox = outbox_on(pair[0], on_written=lambda: reports.append("written"))
    turns()
    outbox.flush()
    assert reports == []
    outbox.send(b"a")
    outbox.flush()
    assert reports == ["written"]


@pytest.mark.parametrize(
    ("lag", "looks"),
    [([0], 1), ([UNREAD_BYTES + 1, UNREAD_BYTES + 1, UNREAD_BYTES], 3), ([UNREAD_BYTES + 1] * 1000, 20)],
)
def test_a_peer_that_lags_behind_is_given_a_moment(pair: Pair, lag: Iterable[int], looks: int) -> None:
    steps = iter(lag)
    seen: list[int] = []

    def unread() -> int:
        seen.append(next(steps))
        return seen[-1]

    outbox = outbox_on(pair[0], unread=unread)
    outbox.send(b"x" * 130 * 1024)
    take(pair[1])
    assert outbox.wait_for_room()
    assert len(seen) == looks
    assert outbox.wait_for_room()
    assert len(seen) == looks  # not again before as much was queued again
    outbox.close()


def test_the_moment_ends_with_the_connection(pair: Pair) -> None:
    outbox = outbox_on(pair[0], unread=lambda: UNREAD_BYTES + 1)
    outbox.send(b"x" * 130 * 1024)
    started = Event()

    def producer() -> bool:
        started.set()
        return outbox.wait_for_room()

    waiter = gevent.spawn(producer)
    started.wait(20)
    outbox.close()
    assert waiter.get(timeout=20) is False
