"""When a sandboxed process has exited: what counts for the guess, and how long the exit waits for it."""

from __future__ import annotations

import time

import gevent
import pytest

from execserver.core import denial
from execserver.core.process_state import SandboxNote
from tests.services.played import Play, Played
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")

TEXT = b"touch: Permission denied"


def exited(one: Played) -> bool:
    return any(event[1] == "exited" for event in one.events())


def wait_until_exited(one: Played) -> None:
    wait_until(lambda: exited(one), pause=gevent.sleep)


def test_without_a_sandbox_nothing_is_denied_and_nothing_waits(play: Play) -> None:
    one = play()
    one.far.write("stderr", TEXT)
    one.far.exit(1 << 8)
    assert exited(one)
    assert one.process.state.sandbox_denied is False


def test_success_does_not_wait(play: Play) -> None:
    one = play(sandbox=SandboxNote())
    one.far.write("stderr", TEXT)
    one.far.exit(0)
    assert exited(one)
    assert one.process.state.sandbox_denied is False


def test_at_the_end_of_all_output_there_is_nothing_to_wait_for(play: Play) -> None:
    one = play(sandbox=SandboxNote())
    one.far.write("stderr", TEXT)
    one.far.end(1 << 8)
    assert exited(one)
    assert one.process.state.sandbox_denied is True


def test_a_failure_waits_a_moment_for_output_that_others_hold_open(play: Play) -> None:
    one = play(sandbox=SandboxNote())
    began = time.monotonic()
    one.far.exit(1 << 8)
    assert not exited(one)
    wait_until_exited(one)
    assert denial.WAIT_S <= time.monotonic() - began < 20
    assert one.process.state.sandbox_denied is False


def test_what_comes_meanwhile_counts_and_its_end_ends_the_wait(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denial, "WAIT_S", 30.0)
    one = play(sandbox=SandboxNote())
    one.far.exit(1 << 8)
    one.far.write("stdout", TEXT)
    assert not exited(one)
    one.far.close()
    wait_until_exited(one)
    assert one.process.state.sandbox_denied is True
    assert [event[1] for event in one.events()] == ["stdout", "exited", "closed"]


def test_it_is_decided_once(play: Play) -> None:
    one = play(sandbox=SandboxNote())
    one.far.exit(1 << 8)
    wait_until_exited(one)
    one.far.write("stderr", TEXT)
    assert one.process.state.sandbox_denied is False


def test_after_a_terminate_nothing_waits(play: Play) -> None:
    one = play(sandbox=SandboxNote())
    one.process.terminate()
    one.far.exit(9)
    assert exited(one)


@pytest.mark.parametrize(("note", "code"), [(SandboxNote(own_init=True), 137), (SandboxNote(), 1), (None, 1)])
def test_an_init_reports_death_by_signal_as_a_status_also_on_a_terminal(
    play: Play, note: SandboxNote | None, code: int
) -> None:
    one = play(tty=True, sandbox=note)
    one.far.end(9)
    one.wait_until_closed()
    assert one.process.state.exit_code == code


def test_a_terminated_terminal_has_the_terminals_exit_code(play: Play) -> None:
    one = play(tty=True, sandbox=SandboxNote(own_init=True))
    one.process.terminate()
    one.far.end(9)
    one.wait_until_closed()
    assert one.process.state.exit_code == 1


def test_the_reason_of_a_refusal_is_known_from_the_exit_on(play: Play) -> None:
    one = play(sandbox=SandboxNote(refusal="because"))
    assert one.process.state.sandbox_refusal == ""
    one.far.end(1 << 8)
    assert one.process.state.sandbox_refusal == "because"
