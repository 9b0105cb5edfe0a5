"""The order of a process's events, and telling lost ones from late ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.client.errors import OutputGap
from execserver.client.rules.event_log import Closed, Event, EventLog, Exited, Output, ReadState


def out(seq: int, data: bytes = b"x") -> Output:
    return Output(seq, "stdout", data)


def drain(log: EventLog) -> list[Event | OutputGap]:
    items = []
    while (item := log.take()) is not None:
        items.append(item)
    return items


def state(
    chunks: list[Output],
    next_seq: int,
    *,
    exit_code: int | None = None,
    closed: bool = False,
    lost_bytes: int | None = None,
) -> ReadState:
    return ReadState(
        chunks=tuple(chunks),
        next_seq=next_seq,
        exited=exit_code is not None,
        exit_code=exit_code,
        closed=closed,
        lost_bytes=lost_bytes,
    )


def gaps(items: list[Event | OutputGap]) -> list[tuple[int, int, int | None]]:
    return [(g.first_seq, g.last_seq, g.lost_bytes) for g in items if isinstance(g, OutputGap)]


def test_events_come_out_in_seq_order_whatever_the_order_they_came_in() -> None:
    log = EventLog("p")
    for event in (Closed(4), out(3), Exited(2, 0)):
        log.add(event)
    assert drain(log) == []
    log.add(out(1))
    assert drain(log) == [out(1), Exited(2, 0), out(3), Closed(4)]
    assert log.complete


def test_an_event_that_came_twice_comes_out_once() -> None:
    log = EventLog("p")
    for event in (out(1), out(1), out(3), out(3), out(2), out(1), out(3)):
        log.add(event)
    assert drain(log) == [out(1), out(2), out(3)]
    assert log.last_seq == 3


def test_an_exit_is_known_before_the_output_that_is_late() -> None:
    log = EventLog("p")
    log.add(Exited(2, 7))
    assert log.exit == Exited(2, 7)
    assert not log.pending


def test_nothing_is_taken_in_after_the_end() -> None:
    log = EventLog("p")
    for event in (Closed(1), out(2), out(3)):
        log.add(event)
    assert drain(log) == [Closed(1)]


def test_the_memory_held_goes_up_with_late_events_and_back_to_nothing() -> None:
    log = EventLog("p")
    log.add(out(2, b"y" * 1000))
    assert log.held > 1000
    log.add(out(1))
    drain(log)
    assert log.held == 0


def test_output_that_nobody_collects_costs_nothing_but_the_end_is_told() -> None:
    log = EventLog("p", collect_output=False)
    for event in (out(1, b"y" * 1000), Exited(2, 0)):
        log.add(event)
    log.account_for(state([], 9, exit_code=0, closed=True))
    assert drain(log) == [Exited(2, 0), Closed(8)]
    assert log.held == 0


class TestAccountFor:
    def test_what_was_missed_is_filled_in(self) -> None:
        log = EventLog("p")
        log.add(out(1))
        log.add(out(4))  # a notification of the new connection that overtakes the answer
        log.account_for(state([out(2), out(3), out(4)], 5))
        assert drain(log) == [out(1), out(2), out(3), out(4)]

    def test_the_hole_among_the_chunks_is_the_exit(self) -> None:
        log = EventLog("p")
        log.account_for(state([out(1), out(3)], 5, exit_code=3, closed=True))
        assert drain(log) == [out(1), Exited(2, 3, False), out(3), Closed(4)]

    def test_an_exit_without_close_is_the_one_missing_seq(self) -> None:
        log = EventLog("p")
        log.account_for(state([out(1)], 3, exit_code=0))
        assert drain(log) == [out(1), Exited(2, 0, False)]
        assert not log.complete

    def test_an_exit_known_from_a_notification_is_not_counted_again(self) -> None:
        log = EventLog("p")
        log.add(Exited(2, 5))
        log.account_for(state([out(1), out(3)], 4, exit_code=5))
        assert drain(log) == [out(1), Exited(2, 5), out(3)]

    def test_output_no_longer_retained_is_a_gap_of_known_size(self) -> None:
        log = EventLog("p")
        log.add(out(1))
        log.account_for(state([out(8), out(9)], 10, lost_bytes=4096))
        items = drain(log)
        assert items[0] == out(1)
        assert gaps(items) == [(2, 7, 4096)]
        assert items[2:] == [out(8), out(9)]

    def test_a_gap_of_a_server_that_does_not_count_has_unknown_size(self) -> None:
        log = EventLog("p")
        log.account_for(state([out(3)], 4))
        assert gaps(drain(log)) == [(1, 2, None)]

    def test_an_exit_inside_the_lost_range_comes_at_its_end(self) -> None:
        log = EventLog("p")
        log.account_for(state([out(6)], 8, exit_code=1, closed=True))
        items = drain(log)
        assert gaps(items) == [(1, 4, None)]
        assert items[1:] == [Exited(5, 1, False), out(6), Closed(7)]

    def test_all_lost_but_the_end(self) -> None:
        log = EventLog("p")
        log.account_for(state([], 6, exit_code=0, closed=True))
        items = drain(log)
        assert gaps(items) == [(1, 3, None)]
        assert items[1:] == [Exited(4, 0, False), Closed(5)]

    def test_an_answer_that_tells_nothing_new_changes_nothing(self) -> None:
        log = EventLog("p")
        for event in (out(1), Exited(2, 0), Closed(3)):
            log.add(event)
        log.account_for(state([], 4, exit_code=0, closed=True))
        assert drain(log) == [out(1), Exited(2, 0), Closed(3)]

    def test_an_exit_before_the_position_asked_for_is_known_but_no_event(self) -> None:
        log = EventLog("p", after_seq=2)
        log.account_for(state([out(3)], 4, exit_code=9))
        assert drain(log) == [out(3)]
        assert log.exit is not None
        assert log.exit.code == 9

    def test_a_late_notification_of_a_settled_seq_is_ignored(self) -> None:
        log = EventLog("p")
        log.account_for(state([out(3)], 4))
        log.add(out(2))
        assert [type(item) for item in drain(log)] == [OutputGap, Output]

    def test_an_unheard_of_next_seq_costs_no_time(self) -> None:
        log = EventLog("p")
        log.account_for(state([], 2**63, exit_code=0, closed=True))
        assert gaps(drain(log)) == [(1, 2**63 - 3, None)]


class TestShed:
    def test_the_oldest_output_goes_and_leaves_one_gap(self) -> None:
        log = EventLog("p")
        for seq in range(1, 11):
            log.add(out(seq, b"y" * 1000))
        log.shed(5000)
        items = drain(log)
        assert gaps(items) == [(1, 6, 6000)]
        assert items[1:] == [out(seq, b"y" * 1000) for seq in (7, 8, 9, 10)]
        assert log.held == 0

    def test_the_gap_grows_with_what_goes_later(self) -> None:
        log = EventLog("p")
        for seq in range(1, 11):
            log.add(out(seq, b"y" * 1000))
            log.shed(4000)
        assert gaps(drain(log)) == [(1, 7, 7000)]

    def test_exit_and_end_are_never_dropped(self) -> None:
        log = EventLog("p")
        for event in (Exited(1, 4), out(2, b"y" * 1000), Closed(3)):
            log.add(event)
        log.shed(0)
        assert [type(item) for item in drain(log)] == [Exited, OutputGap, Closed]

    def test_events_that_wait_for_a_missing_one_do_not_escape_the_bound(self) -> None:
        log = EventLog("p")
        for seq in range(2, 12):
            log.add(out(seq, b"y" * 1000))
        log.shed(5000)
        items = drain(log)
        assert gaps(items) == [(1, 7, None)]
        assert items[-1] == out(11, b"y" * 1000)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """All events of one process in seq order: output with one exit among it, and the end."""
    count = draw(st.integers(0, 12))
    exit_at = draw(st.integers(1, count + 1))
    events: list[Event] = [
        Exited(seq, 3) if seq == exit_at else out(seq, b"%d" % seq) for seq in range(1, count + 2)
    ]
    return [*events, Closed(count + 2)]


def answer_of(history: list[Event], known: int, after_seq: int, retained_from: int) -> ReadState:
    """Return what a server that has got to event `known` answers."""
    so_far = history[:known]
    return ReadState(
        chunks=tuple(
            event
            for event in so_far
            if isinstance(event, Output) and event.seq > after_seq and event.seq >= retained_from
        ),
        next_seq=known + 1,
        exited=any(isinstance(event, Exited) for event in so_far),
        exit_code=3 if any(isinstance(event, Exited) for event in so_far) else None,
        closed=known == len(history),
    )


@given(data=st.data(), history=histories())
def test_losing_any_notifications_and_reading_once_gives_every_event_in_order(
    data: st.DataObject, history: list[Event]
) -> None:
    log = EventLog("p")
    heard = data.draw(st.lists(st.sampled_from(history), max_size=20))
    known = data.draw(st.integers(max((event.seq for event in heard), default=0), len(history)))
    for event in heard:
        log.add(event)
    log.account_for(answer_of(history, known, log.last_seq, 0))
    for event in data.draw(st.permutations(history[known:])):
        log.add(event)
    items = drain(log)
    assert gaps(items) == []
    assert [getattr(item, "seq", None) for item in items] == [event.seq for event in history]
    assert log.complete
    assert log.held == 0


@given(data=st.data(), history=histories())
def test_what_the_server_dropped_is_always_told_as_a_gap(data: st.DataObject, history: list[Event]) -> None:
    log = EventLog("p")
    retained_from = data.draw(st.integers(1, len(history) + 1))
    log.account_for(answer_of(history, len(history), 0, retained_from))
    items = drain(log)
    told = [event.seq for event in items if isinstance(event, Output)]
    lost = {seq for first, last, _ in gaps(items) for seq in range(first, last + 1)}
    expected_lost = {
        event.seq for event in history if isinstance(event, Output) and event.seq < retained_from
    }
    assert told == [
        event.seq for event in history if isinstance(event, Output) and event.seq >= retained_from
    ]
    assert len(lost) == len(expected_lost)
    assert isinstance(items[-1], Closed)


def test_a_gap_says_in_words_what_is_lost() -> None:
    assert str(OutputGap("p", 2, 5, 100)) == "output of process p is lost: events 2 to 5, 100 bytes"
    with pytest.raises(OutputGap, match="an unknown number of bytes"):
        raise OutputGap("p", 1, 1)


def test_a_server_that_leaves_out_every_second_number_costs_little() -> None:
    """Each event was looked for among all others, and each left a gap: hours, and no bound."""
    log = EventLog("p")
    began = time.process_time()
    for seq in range(2, 60_002, 2):
        log.add(out(seq, b""))
        if log.held > 1_000_000:
            log.shed(1_000_000)
        assert log.held <= 1_000_000
    assert time.process_time() - began < 10
    log.shed(0)
    assert gaps(drain(log)) == [(1, 60_000, None)]


def test_a_process_has_one_end_however_often_it_is_told() -> None:
    log = EventLog("p")
    for seq in range(1, 1001):
        log.add(Exited(seq, seq))
    assert log.exit == Exited(1, 1)
    assert log.held < 1000
    assert drain(log) == [Exited(1, 1)]


def test_discarded_output_is_gone_and_the_end_still_comes() -> None:
    log = EventLog("p")
    log.add(Output(1, "stdout", b"x" * 1000))
    log.add(Output(3, "stdout", b"late"))
    log.discard()
    log.add(Output(2, "stdout", b"more"))
    log.add(Exited(4, 0))
    log.add(Closed(5))
    assert [log.take(), log.take(), log.take()] == [Exited(4, 0), Closed(5), None]
    assert (log.held, log.complete) == (0, True)
