"""A confined child by itself: that it ends with its starter, what it keeps open, and what it reports."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox.kernel.namespaces import NEW_PIDS, NEW_USER
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.confine import child
from execserver.zygote.confine.child import KEPT, REPORT, Report, fork_child, milliseconds_until, start_child
from tests.support.proc import stat_fields
from tests.support.waiting import wait_until

KERNEL = Kernel()


def begun(act: Callable[[int], object]) -> tuple[int, Report]:
    """Fork a child that ties itself to this process and then calls `act` with its report."""

    def become(report: int, _: object) -> None:
        child.tie(KERNEL)
        child.check_starter(KERNEL, report)
        act(report)
        os._exit(0)

    return fork_child(KERNEL, become)


def reaped(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def test_a_child_that_runs_and_ends_tells_both() -> None:
    def act(report: int) -> None:
        child.keep_only(KERNEL, report)
        child.tell_running()
        child.tell_ended(7 << 8)

    pid, report = begun(act)
    assert report.await_first_word(pid, 10_000) is None
    assert report.end(reaped(pid)) == 7 << 8


def told_report(word: bytes) -> Report:
    """Return a report that holds a word of a child that has ended."""
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.write(theirs, word)
    os.close(theirs)
    return Report(ours)


@pytest.mark.parametrize("word", [b"R", b"Fwhy", b""])
def test_what_is_held_is_closed_with_the_first_word(word: bytes) -> None:
    held, report = os.open("/dev/null", os.O_RDONLY), told_report(word)
    report.hold([held], lambda: (0, report))
    report.hear()
    assert not is_open(held)
    assert report.take_again() is None
    report.end(0)


def test_what_is_held_after_unlike_belongs_to_the_next_start() -> None:
    held, report = os.open("/dev/null", os.O_RDONLY), told_report(b"U")
    report.hold([held], lambda: (4711, report))
    assert report.hear() == b"U"
    again = report.take_again()
    assert again is not None
    assert again() == (4711, report)
    assert report.take_again() is None
    report.end(0)
    assert is_open(held)
    os.close(held)


def test_what_is_held_is_closed_at_the_end_of_a_child_that_said_nothing() -> None:
    held, report = os.open("/dev/null", os.O_RDONLY), told_report(b"")
    report.hold([held])
    report.end(0)
    assert not is_open(held)


def test_a_command_that_could_not_be_started_has_ended_with_the_first_word() -> None:
    def act(report: int) -> None:
        child.keep_only(KERNEL, report)
        child.tell_unstarted(101)

    pid, report = begun(act)
    assert report.await_first_word(pid, 10_000) is None
    assert report.has_ended
    assert report.end(reaped(pid)) == 101 << 8


@pytest.mark.parametrize("ends", [True, False])
def test_an_end_before_others_is_heard_at_once_and_counts_in_the_end(ends: bool) -> None:
    may_go_on, go_on = os.pipe()

    def act(report: int) -> None:
        go = os.dup(may_go_on)
        child.place(report, go)
        child.tell_running()
        child.tell_left(7 << 8)
        os.read(child.KEPT, 1)
        if ends:
            child.tell_ended(7 << 8)

    pid, report = begun(act)
    assert report.await_first_word(pid, 10_000) is None
    wait_until(lambda: report.hear_of_others() == 7 << 8)
    assert not report.has_ended
    os.write(go_on, b"x")
    assert report.end(reaped(pid)) == 7 << 8
    os.close(may_go_on)
    os.close(go_on)


@pytest.mark.parametrize("ends", [True, False])
def test_who_is_inside_is_known_until_the_end_is(ends: bool) -> None:
    def act(report: int) -> None:
        child.keep_only(KERNEL, report)
        child.tell_running(4321)
        if ends:
            child.tell_ended(7 << 8)

    pid, report = begun(act)
    assert report.await_first_word(pid, 10_000) is None
    assert report.inside == 4321
    assert report.end(reaped(pid)) == (7 << 8 if ends else 0)
    assert report.inside == (0 if ends else 4321)


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_what_lives_on_in_a_sandbox_is_ended_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    def lack(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", lack)

    def become(report: int, _: object) -> None:
        child.keep_only(KERNEL, report)
        child.tell_running()
        signal.pause()

    flags = NEW_PIDS if os.geteuid() == 0 else NEW_PIDS | NEW_USER
    try:
        inside, report = fork_child(KERNEL, become, flags)
    except OSError as error:
        pytest.skip(f"no pid namespace can be made here: {error.strerror}")
    other, report_of_other = fork_child(KERNEL, become)
    assert report.await_first_word(inside, 10_000) is None
    assert report_of_other.await_first_word(other, 10_000) is None
    child.end_inside(inside)
    child.end_inside(other)
    assert report.end(reaped(inside)) == signal.SIGKILL
    assert os.waitpid(other, os.WNOHANG) == (0, 0)
    os.kill(other, signal.SIGTERM)
    assert report_of_other.end(reaped(other)) == signal.SIGTERM
    child.end_inside(other)  # gone: no error


def test_a_failure_is_the_reason_and_a_dead_child_has_none() -> None:
    pid, report = begun(lambda report: child.tell_failure(report, b"no view"))
    assert report.await_first_word(pid, 10_000) == b"no view"
    assert report.end(reaped(pid)) == 0
    pid, report = begun(lambda _: os._exit(3))
    assert report.await_first_word(pid, 10_000) == b"its first process was killed"
    assert os.waitstatus_to_exitcode(report.end(reaped(pid))) == 3


def test_a_child_that_takes_too_long_is_killed() -> None:
    pid, report = begun(lambda _: time.sleep(60))
    assert report.await_first_word(pid, 1) == b"the view took too long to build"
    assert report.end(reaped(pid)) == signal.SIGKILL


def test_an_end_that_a_child_cannot_tell_is_the_processs_own() -> None:
    """One that becomes its command has closed the report; one that is killed says nothing."""

    def act(report: int) -> None:
        child.keep_only(KERNEL, report)
        child.tell_running()
        os.close(REPORT)
        os._exit(5)

    pid, report = begun(act)
    assert report.await_first_word(pid, 10_000) is None
    assert report.end(reaped(pid)) == 5 << 8


@pytest.mark.parametrize("given", [False, True])
def test_nothing_is_open_but_stdio_the_report_and_what_is_kept(given: bool, tmp_path: Path) -> None:
    result = tmp_path / "result"
    kept = os.memfd_create("kept") if given else -1
    others = [os.dup(1) for _ in range(5)]

    def act(report: int) -> None:
        assert child.keep_only(KERNEL, report, kept) == REPORT
        names = {number: os.readlink(f"/proc/self/fd/{number}") for number in range(3, 20) if is_open(number)}
        result.write_text("\n".join(f"{number} {name}" for number, name in names.items()))

    pid, report = begun(act)
    report.end(reaped(pid))
    found = dict(line.split(" ", 1) for line in result.read_text().splitlines())
    assert found.pop(str(REPORT)).startswith("pipe:")
    assert [(number, "kept" in name) for number, name in found.items()] == [(str(KEPT), True)] * given
    for number in [*others, *([kept] if given else [])]:
        os.close(number)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("act", [child.tie, lambda kernel: child.tying_to_parent(kernel)])
def test_a_child_ends_with_its_starter(act: Callable[[Kernel], object]) -> None:
    numbers, told = os.pipe()
    starter = os.fork()
    if starter == 0:
        tie = act(KERNEL) if act is not child.tie else None
        pid = os.fork()
        if pid == 0:
            child.tie(KERNEL) if tie is None else tie()  # type: ignore[operator]
            os.write(told, b"%d" % os.getpid())
        time.sleep(60)
        os._exit(0)
    pid = int(os.read(numbers, 20))
    os.kill(starter, signal.SIGKILL)
    reaped(starter)
    wait_until(lambda: stat_fields(pid) == [] or stat_fields(pid)[0] == "Z")
    os.close(numbers)
    os.close(told)


def test_a_child_whose_starter_has_ended_before_it_was_tied_goes_no_further() -> None:
    ours, theirs = os.pipe()
    child.check_starter(KERNEL, theirs)
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        child.check_starter(KERNEL, theirs)
    os.close(theirs)


def test_a_fork_that_fails_leaves_nothing_open() -> None:
    def fork(_: int) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        start_child(fork)
    assert os.listdir("/proc/self/fd") == before


def test_a_deadline_is_a_time_to_wait() -> None:
    assert milliseconds_until(0) is None
    assert milliseconds_until(1) == 1
    assert 3_540_000 < (milliseconds_until(time.monotonic_ns() + 3600 * 1_000_000_000) or 0) <= 3_600_001
