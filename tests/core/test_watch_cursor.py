from __future__ import annotations

import random

import pytest

from execserver.core.output_log import Chunk
from execserver.core.process_state import ProcessState
from execserver.core.watch_cursor import Close, Exit, Gap, WatchCursor, WatchEvent


def running(retained: int = 10) -> ProcessState:
    state = ProcessState(tty=False, retained_bytes=retained)
    state.started()
    return state


def seqs(events: list[WatchEvent]) -> list[int]:
    return [event[0] for event in events]


def test_what_is_retained_comes_first_and_then_what_is_new() -> None:
    state = running()
    state.record_output("stdout", b"ab")
    cursor = WatchCursor(state, 0)
    state.record_output("stderr", b"cd")
    assert cursor.take(100) == [Chunk(1, "stdout", b"ab"), Chunk(2, "stderr", b"cd")]
    assert not cursor.behind
    state.record_exit(3, signalled=False)
    state.record_closed()
    assert cursor.take(100) == [Exit(3), Close(4)]
    assert cursor.finished


def test_a_watcher_may_begin_with_now() -> None:
    state = running()
    state.record_output("stdout", b"ab")
    cursor = WatchCursor(state, None)
    state.record_output("stdout", b"cd")
    assert seqs(cursor.take(100)) == [2]


def test_a_slow_watcher_is_told_what_it_missed() -> None:
    state = running(4)
    cursor = WatchCursor(state, 0)
    for _ in range(5):
        state.record_output("stdout", b"xx")
    assert cursor.take(100) == [Gap(1, 3, 6), Chunk(4, "stdout", b"xx"), Chunk(5, "stdout", b"xx")]
    for _ in range(5):
        state.record_output("stdout", b"yy")
    assert cursor.take(100)[0] == Gap(6, 8, 6)


def test_the_exit_is_told_even_in_a_gap() -> None:
    state = running(2)
    cursor = WatchCursor(state, 0)
    state.record_output("stdout", b"a")
    state.record_exit(0, signalled=False)
    for _ in range(3):
        state.record_output("stdout", b"bb")
    state.record_closed()
    assert cursor.take(9) == [Gap(1, 1, 5), Exit(2), Gap(3, 4, None), Chunk(5, "stdout", b"bb"), Close(6)]


def test_a_closed_process_still_tells_so() -> None:
    state = running()
    state.record_exit(0, signalled=False)
    state.record_closed()
    assert WatchCursor(state, None).take(9) == [Close(2)]
    assert WatchCursor(state, 10**15).take(9) == [Close(2)]


@pytest.mark.parametrize("seed", range(20))
def test_every_event_is_told_once_or_is_in_a_gap(seed: int) -> None:
    chance = random.Random(seed)
    state = running(20)
    cursor = WatchCursor(state, 0)
    told: list[int] = []
    for _ in range(300):
        if chance.random() < 0.8:
            state.record_output("stdout", b"x" * chance.randint(1, 8))
        elif not state.exited and chance.random() < 0.05:
            state.record_exit(0, signalled=False)
        elif chance.random() < 0.3:
            told += covered(cursor.take(chance.randint(1, 30)))
    if not state.exited:
        state.record_exit(0, signalled=False)
    state.record_closed()
    while not cursor.finished:
        told += covered(cursor.take(7))
    assert told == list(range(1, state.log.next_seq))


def covered(events: list[WatchEvent]) -> list[int]:
    found: list[int] = []
    for event in events:
        found += range(event.first_seq, event.last_seq + 1) if isinstance(event, Gap) else [event[0]]
    return found
