"""The order of a process's events, and what a waiting read waits for."""

from __future__ import annotations

import pytest

from execserver.core.process_state import REMEMBERED_WRITE_IDS, ProcessPhase, ProcessState, WriteMemory


def running(*, tty: bool = False) -> ProcessState:
    state = ProcessState(tty=tty, retained_bytes=1000)
    state.started()
    return state


def test_late_output_gets_a_number_after_the_exit_and_closed_the_last_one() -> None:
    state = running()
    assert state.record_output("stdout", b"a") == 1
    assert state.record_exit(0, signalled=False) == 2
    assert state.record_output("stdout", b"b") == 3
    assert state.record_closed() == 4
    assert state.page(0, None).next_seq == 5


def test_nothing_is_recorded_after_closed() -> None:
    state = running()
    state.record_exit(0, signalled=False)
    state.record_closed()
    with pytest.raises(ValueError, match="output after closed"):
        state.record_output("stdout", b"x")


def test_a_process_cannot_close_before_it_exits_nor_exit_twice() -> None:
    state = running()
    with pytest.raises(ValueError, match="running cannot become closed"):
        state.record_closed()
    state.record_exit(1, signalled=False)
    with pytest.raises(ValueError, match="exited cannot become exited"):
        state.record_exit(1, signalled=False)
    assert state.phase is ProcessPhase.EXITED


@pytest.mark.parametrize(
    ("tty", "code", "signalled", "reported"),
    [(False, 137, True, 137), (True, 137, True, 1), (True, 137, False, 137), (True, 0, False, 0)],
)
def test_a_death_by_signal_is_reported_as_1_on_a_terminal(
    tty: bool, code: int, signalled: bool, reported: int
) -> None:
    state = running(tty=tty)
    state.record_exit(code, signalled=signalled)
    assert state.exit_code == reported


def test_a_read_waits_for_output_it_has_not_seen() -> None:
    state = running()
    assert not state.answers_read(0)
    state.record_output("stdout", b"a")
    assert state.answers_read(0)
    assert not state.answers_read(1)


def test_a_read_is_answered_by_an_exit_once_and_then_waits_for_the_close() -> None:
    state = running()
    state.record_exit(0, signalled=False)
    assert state.answers_read(0)
    assert not state.answers_read(1)
    state.record_closed()
    assert state.answers_read(2)


def test_write_ids_are_remembered_up_to_the_bound_oldest_forgotten() -> None:
    memory = WriteMemory()
    for number in range(REMEMBERED_WRITE_IDS + 1):
        memory.add(str(number))
    assert "0" not in memory
    assert "1" in memory
    assert str(REMEMBERED_WRITE_IDS) in memory
