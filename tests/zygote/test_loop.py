"""The zygote as a whole, over its socket: parallel starts, exits, groups, and its end."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.groups import all_processes, process_stat
from execserver.zygote.records import Failed, Release, SpawnRequest, Started
from execserver.zygote.stages import STAGE_EXEC
from tests.support.roots import plan
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote
from tests.zygote.harness import PATH, Zygote, read_to_end


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


def gone(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is None or stat[0] == b"Z"


def test_parallel_children_hold_stdio_only(zygote: Zygote) -> None:
    """Eight starts are queued before the first is answered; no child has another one's pipe ends."""
    readers: list[int] = []
    for number in range(8):
        out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        into = os.pipe2(os.O_CLOEXEC)
        command = [b"sh", b"-c", b"echo up; read line"]
        request = SpawnRequest(100 + number, command, [PATH], b"/", pipe_stdin=True)
        zygote.send(request, [into[0], out[1], err[1]])
        for descriptor in (into[0], out[1], err[0], err[1]):
            os.close(descriptor)
        readers += [out[0], into[1]]
    try:
        answers = [zygote.answer(100 + number) for number in range(8)]
        assert [os.read(out, 100) for out in readers[::2]] == [b"up\n"] * 8
        held = [os.listdir(f"/proc/{started.pid}/fd") for started in answers if isinstance(started, Started)]
        assert held == [["0", "1", "2"]] * 8
    finally:
        for descriptor in readers:
            os.close(descriptor)


def test_the_exit_record_follows_the_answer_and_names_the_child(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sh", b"-c", b"exit 9")
    record = zygote.exit_of(started.request_id)
    assert (record.pid, record.status, record.survivors) == (started.pid, 9 << 8, False)


def test_death_by_signal_is_in_the_status(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sh", b"-c", b"kill -SEGV $$")
    assert os.WTERMSIG(zygote.exit_of(started.request_id).status) == signal.SIGSEGV


def test_a_signal_reaches_the_whole_group(zygote: Zygote) -> None:
    out, err = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    started = zygote.ask(b"sh", b"-c", b"sleep 60 & echo up; wait", descriptors=[out[1], err[1]])
    os.close(out[1])
    os.close(err[1])
    assert isinstance(started, Started)
    assert os.read(out[0], 10) == b"up\n"
    assert zygote.signal(started.request_id, signal.SIGTERM).delivered
    assert zygote.exit_of(started.request_id).status == signal.SIGTERM
    assert read_to_end(out[0]) == b""  # sleep, too, has let go of it
    os.close(err[0])


def test_a_refused_signal_tells_why(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sleep", b"60")
    answer = zygote.signal(started.request_id, 4242)
    assert (answer.delivered, answer.errno) == (False, errno.EINVAL)


def test_members_that_outlive_their_leader_are_reached(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sh", b"-c", b"sleep 60 & exit 0")
    record = zygote.exit_of(started.request_id)
    assert record.survivors
    assert zygote.signal(started.request_id, signal.SIGKILL).delivered
    wait_until(lambda: not [1 for stat in all_processes().values() if stat[2] == started.pid])
    assert not zygote.signal(started.request_id, signal.SIGKILL).delivered


def test_a_child_that_is_gone_or_was_never_there_is_not_signalled(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"true")
    zygote.exit_of(started.request_id)
    answers = [zygote.signal(number, signal.SIGKILL) for number in (started.request_id, 4711)]
    assert [(answer.delivered, answer.errno) for answer in answers] == [(False, 0)] * 2


def test_orphans_are_reaped_without_a_word(zygote: Zygote) -> None:
    started = zygote.start_quietly(b"sh", b"-c", b"(sleep 0.05 &) ; exit 0")
    zygote.exit_of(started.request_id)
    wait_until(lambda: not [1 for stat in all_processes().values() if stat[1] == zygote.pid])
    assert zygote.run(b"echo", b"next")[1] == b"next\n"
    assert zygote.early == []


def test_the_end_of_the_socket_ends_every_descendant(tmp_path: Path) -> None:
    """Those that ignore signals, left their session and are nobody's child any more included."""
    pids = tmp_path / "pids"
    tree = b"""
        trap '' TERM HUP INT; cd %b
        setsid sh -c 'trap "" TERM HUP; echo $$ >>pids
                      setsid sh -c "echo \\$\\$ >>pids; sleep 60" & sleep 60' &
        (setsid sh -c 'echo $$ >>pids; sleep 60' &)
        echo $$ >>pids; sleep 60
    """ % os.fsencode(tmp_path)
    with Zygote() as zygote:
        zygote.start_quietly(b"sh", b"-c", tree)
        zygote.start_quietly(b"sleep", b"60")
        wait_until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 4)
        descendants = [int(line) for line in pids.read_text().split()]
        begin = time.monotonic()
        zygote.sock.close()
        assert zygote.reap() == 0
        assert time.monotonic() - begin < 20
    assert [pid for pid in descendants if not gone(pid)] == []


def test_a_server_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    with Zygote() as zygote:
        started = zygote.start_quietly(b"sleep", b"60")
        zygote.sock.close()
        zygote.reap()
        assert gone(started.pid)


def test_a_start_that_came_without_room_for_its_record_is_refused() -> None:
    """With no descriptor free for the memfd of a large request, the request is still answered."""
    with Zygote(soft_nofile=8) as zygote:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            env = [b"A=" + b"x" * 100_000]
            refused = zygote.ask(b"true", env=env, descriptors=[null] * 5)
        finally:
            os.close(null)
        assert isinstance(refused, Failed)
        assert refused.errno == errno.EMFILE
        assert zygote.run(b"echo", b"next")[1] == b"next\n"


def test_a_start_for_which_the_zygote_lacks_something_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Sandboxes, "begin", lack)
    with ConfinedZygote() as zygote:
        failed = zygote.refusal(b"true", plan=plan())
        assert (failed.stage, failed.errno) == (STAGE_EXEC, errno.EMFILE)
        assert zygote.run(b"echo", b"next")[1] == b"next\n"


def test_a_released_zygote_ends_when_nobody_is_left_also_not_what_others_have_left_behind(
    zygote: Zygote,
) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    request = SpawnRequest(7, [b"sh", b"-c", b"setsid sleep 1000 & echo $!"], [PATH], b"/")
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    zygote.send(request, [writer, null])
    os.close(writer)
    os.close(null)
    zygote.answer(7)
    left = int(os.read(reader, 100))
    os.close(reader)
    zygote.exit_of(7)
    zygote.send(Release())
    again = zygote.start_quietly(b"true")  # it serves as before
    zygote.exit_of(again.request_id)
    assert not gone(left)
    os.kill(left, signal.SIGKILL)
    assert zygote.reap() == 0


def test_a_released_zygote_without_children_ends_at_once(zygote: Zygote) -> None:
    zygote.send(Release())
    assert zygote.reap() == 0
