"""When the reader of a connection stops: the bound on unread output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest
from gevent.event import Event

from execserver.client.greenlets.flow import Gate, Inlet

LIMIT = 100


@pytest.fixture
def gate() -> Gate:
    return Gate(LIMIT, 1000)


def full(gate: Gate, reader: gevent.Greenlet[[], None] | None = None) -> Inlet:
    inlet = Inlet()
    if reader is not None:
        inlet.read_by(reader)
    gate.update(inlet, LIMIT + 1)
    return inlet


@contextmanager
def somebody(gate: Gate, *, waits: bool) -> Iterator[gevent.Greenlet[[], None]]:
    """A greenlet that lives during the block, and waits for the server or does not."""
    entered, leave = Event(), Event()

    def live() -> None:
        if waits:
            with gate.waiting():
                entered.set()
                leave.wait()
        else:
            entered.set()
            leave.wait()

    greenlet = gevent.spawn(live)
    entered.wait()
    try:
        yield greenlet
    finally:
        leave.set()
        greenlet.join()


def test_reading_goes_on_while_little_is_unread(gate: Gate) -> None:
    gate.update(Inlet(), LIMIT)
    assert not gate.must_stop()


def test_reading_stops_when_much_is_unread_and_nobody_waits(gate: Gate) -> None:
    full(gate)
    assert gate.must_stop()


def test_taking_the_output_lets_reading_go_on(gate: Gate) -> None:
    inlet = full(gate)
    gate.update(inlet, LIMIT)
    assert not gate.must_stop()


def test_reading_goes_on_for_one_who_waits_when_nobody_reads_the_full_process(gate: Gate) -> None:
    full(gate)
    with somebody(gate, waits=True):
        assert not gate.must_stop()
    assert gate.must_stop()


def test_one_who_waits_has_to_wait_for_a_slow_reader(gate: Gate) -> None:
    with somebody(gate, waits=False) as reader, somebody(gate, waits=True):
        full(gate, reader)
        assert gate.must_stop()


def test_reading_goes_on_when_the_reader_itself_waits(gate: Gate) -> None:
    with somebody(gate, waits=True) as reader:
        full(gate, reader)
        assert not gate.must_stop()


def test_a_reader_that_has_ended_does_not_count(gate: Gate) -> None:
    with somebody(gate, waits=False) as reader:
        full(gate, reader)
    with somebody(gate, waits=True):
        assert not gate.must_stop()


def test_waiting_inside_waiting_counts_until_the_outer_one_ends(gate: Gate) -> None:
    full(gate)
    with gate.waiting():
        with gate.waiting():
            pass
        assert not gate.must_stop()
    assert gate.must_stop()


def test_the_held_back_reader_goes_on_as_soon_as_output_is_taken(gate: Gate) -> None:
    inlet = full(gate)
    reader = gevent.spawn(gate.hold_back)
    gevent.sleep(0)
    assert not reader.ready()
    gate.update(inlet, 0)
    reader.join(timeout=0.2)
    assert reader.ready()


def test_the_held_back_reader_goes_on_as_soon_as_somebody_waits(gate: Gate) -> None:
    full(gate)
    reader = gevent.spawn(gate.hold_back)
    gevent.sleep(0)
    with gate.waiting():
        reader.join(timeout=0.2)
        assert reader.ready()


def test_the_held_back_reader_notices_a_consumer_that_ended_without_a_word(gate: Gate) -> None:
    with somebody(gate, waits=True):
        with somebody(gate, waits=False) as consumer:
            full(gate, consumer)
            reader = gevent.spawn(gate.hold_back)
            gevent.sleep(0)
            assert not reader.ready()
        reader.join(timeout=20)
        assert reader.ready()


def test_others_run_although_messages_never_end(gate: Gate) -> None:
    seen: list[int] = []

    def read() -> None:
        while not seen:
            gate.hold_back()

    reader = gevent.spawn(read)
    gevent.spawn(seen.append, 1)
    reader.join(timeout=20)
    assert seen == [1]
