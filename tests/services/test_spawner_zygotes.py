from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.protocol.errors import InternalError
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.zygote.reaper import own_children
from tests.services.spawning import (
    Running,
    only_zygote,
    running,
    spawner,
    spec,
    stopped,
    wait_gone,
    zygotes,
)
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
HASTE_S = 0.3


@pytest.fixture
def own_spawner() -> Iterator[Spawner]:
    with spawner() as made:
        yield made


def refusal(by: Spawner, what: SpawnSpec) -> str:
    with pytest.raises(InternalError) as caught:
        by.spawn(what)
    return caught.value.message


def hasty_refusal(by: Spawner, what: SpawnSpec) -> str:
    """The same for a start that hangs and is soon given up; others have the time of a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by, "_spawn_timeout_s", HASTE_S)
        patch.setattr(by, "_patience_s", HASTE_S)
        return refusal(by, what)


def test_a_killed_zygote_takes_its_children_with_it(own_spawner: Spawner) -> None:
    """Also those that left the session; every exit is reported and the next start works."""
    tree = b"setsid sh -c 'trap \"\" TERM HUP; echo $$; sleep 60 & wait' & wait"
    with running(own_spawner, b"sh", b"-c", tree) as process, running(own_spawner, b"sleep", b"60") as other:
        grandchild = int(process.read_some("stdout"))
        os.kill(only_zygote(), signal.SIGKILL)
        assert process.exit_code() == other.exit_code() == 137
        wait_gone(grandchild)
        assert process.read("stdout") == b""
    with running(own_spawner, b"echo", b"again") as process:
        assert process.read("stdout") == b"again\n"
        assert process.exit_code() == 0
    assert len(own_children()) == len(zygotes()) == 1


def test_a_start_during_the_zygotes_death_is_an_error(own_spawner: Spawner) -> None:
    zygote = only_zygote()
    with stopped(zygote):
        start = gevent.spawn(own_spawner.spawn, spec(b"true"))
        gevent.sleep(0)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(InternalError, match="ended unexpectedly"):
            start.get(timeout=20)
    with running(own_spawner, b"true") as process:
        assert process.exit_code() == 0


def test_own_processes_of_the_server_survive_the_zygotes_death(own_spawner: Spawner) -> None:
    with subprocess.Popen(["sleep", "60"]) as own:
        with running(own_spawner, b"sleep", b"60") as process:
            os.kill(only_zygote(), signal.SIGKILL)
            process.exit_code()
        assert own.poll() is None
        own.kill()


def test_a_zygote_that_ends_in_order_costs_no_stranger_its_life() -> None:
    """Orphans of others become children of the first process of a container, and live on."""
    stranger = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setsid=True)
    with spawner() as by:
        (first,) = [pid for pid in zygotes() if pid != stranger]
        with stopped(first):
            assert "timed out" in hasty_refusal(by, spec(b"true"))
        wait_until(lambda: first not in own_children(), pause=gevent.sleep)
        assert os.waitpid(stranger, os.WNOHANG) == (0, 0)
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def test_a_start_that_hangs_is_an_error_in_time_and_starts_nothing_later(tmp_path: Path) -> None:
    with spawner() as by, running(by, b"sleep", b"60") as earlier:
        first = only_zygote()
        with stopped(first):
            begin = time.monotonic()
            late = spec(b"touch", b"late", cwd=os.fsencode(tmp_path))
            assert hasty_refusal(by, late) == (
                "process start timed out after 0.3 s (the program or its folder does not answer)"
            )
            assert time.monotonic() - begin < 20
            with running(by, b"echo", b"elsewhere") as process:
                assert process.read("stdout") == b"elsewhere\n"
                process.exit_code()
            assert len(zygotes()) == 2
        # Back again, it refuses what nobody waits for, keeps its child, and ends with it.
        assert earlier.child.kill_group()
        assert earlier.exit_code() == 137
        wait_gone(first)
        assert list(tmp_path.iterdir()) == []


def test_children_of_a_hanging_zygote_are_signalled_and_their_exit_is_seen() -> None:
    with spawner() as by:
        code = b"trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done"
        with running(by, b"sh", b"-c", code) as process, stopped(only_zygote()):
            process.read_some("stdout")
            assert "timed out" in hasty_refusal(by, spec(b"true"))
            assert process.child.signal(signal.SIGTERM)
            assert process.exit_code() == 7


def test_others_do_not_wait_behind_a_start_that_hangs(own_spawner: Spawner) -> None:
    """The hanging one has its five seconds, here cut short by its caller's end."""
    first = only_zygote()
    with stopped(first):
        hanging = gevent.spawn(own_spawner.spawn, spec(b"true"))
        gevent.sleep(0)
        begin = time.monotonic()
        with running(own_spawner, b"true") as process:
            assert process.exit_code() == 0
        assert time.monotonic() - begin < 20
        assert not hanging.ready()
        hanging.kill()
    wait_gone(first)


def test_a_slow_start_succeeds_and_its_zygote_is_used_again(own_spawner: Spawner) -> None:
    first = only_zygote()
    with stopped(first):
        slow = gevent.spawn(own_spawner.spawn, spec(b"sleep", b"60"))
        gevent.sleep(0)
        with running(own_spawner, b"true") as process:
            process.exit_code()
        (second,) = set(zygotes()) - {first}  # pids start again, so the newer one may have the smaller
    earlier = Running(slow.get(timeout=20))
    with stopped(second):
        start = gevent.spawn(own_spawner.spawn, spec(b"true"))
        gevent.sleep(0)
        with running(own_spawner, b"true") as process:
            assert process.exit_code() == 0
            assert sorted(zygotes()) == sorted([first, second])
        start.kill()
    earlier.child.kill_group()
    assert earlier.exit_code() == 137
    earlier.close()


def test_no_more_than_four_zygotes_hang() -> None:
    with spawner() as by:
        held: list[int] = []
        try:
            for _ in range(4):
                with running(by, b"true") as process:
                    process.exit_code()
                held.append(next(pid for pid in zygotes() if pid not in held))
                os.kill(held[-1], signal.SIGSTOP)
                assert "timed out" in hasty_refusal(by, spec(b"true"))
            message = "process start refused: 4 earlier starts hang (their folders do not answer)"
            assert refusal(by, spec(b"true")) == message
            assert len(zygotes()) == 4
        finally:
            for pid in held:
                os.kill(pid, signal.SIGCONT)
        for pid in held:
            wait_gone(pid)
        with running(by, b"true") as process:
            assert process.exit_code() == 0


def test_shutdown_is_polite_first() -> None:
    on_term = b"trap 'exit 5' TERM; trap '' HUP; echo up; while :; do sleep 0.01; done"
    on_hup = b"trap 'exit 6' HUP; trap '' TERM; echo up; while :; do sleep 0.01; done"
    with spawner() as by:
        with (
            running(by, b"sh", b"-c", on_term) as pipe,
            running(by, b"sh", b"-c", on_hup, tty=True) as tty,
        ):
            pipe.read_some("stdout")
            tty.read_some("pty")
            begin = time.monotonic()
            by.shutdown(40.0)
            assert time.monotonic() - begin < 30
            assert (pipe.exit_code(), tty.exit_code()) == (5, 6)
        assert refusal(by, spec(b"true")) == "process start refused: the server is shutting down"


def test_shutdown_ends_what_ignores_politeness() -> None:
    with spawner() as by:
        stubborn = b"trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; echo $$; sleep 60' & wait; sleep 60"
        with running(by, b"sh", b"-c", stubborn) as process:
            grandchild = int(process.read_some("stdout"))
            begin = time.monotonic()
            by.shutdown(0.2)
            assert time.monotonic() - begin < 20
            assert process.exit_code() == 137
            wait_gone(grandchild)
        assert own_children() == []


def test_shutdown_ends_a_zygote_that_hangs() -> None:
    with spawner() as by, running(by, b"sleep", b"60") as process:
        zygote = only_zygote()
        os.kill(zygote, signal.SIGSTOP)
        by.shutdown(0.0)
        assert process.exit_code() == 137
        wait_gone(zygote)
        assert own_children() == []


def test_without_a_first_zygote_one_starts_at_need() -> None:
    with spawner(zygote=False) as by:
        assert zygotes() == []
        with running(by, b"true") as process:
            assert process.exit_code() == 0
        assert len(zygotes()) == 1


def test_a_zygote_that_cannot_be_started_is_an_error_of_the_start() -> None:
    with spawner(zygote=False, command=[b"/no/such/zygote"]) as by:
        assert refusal(by, spec(b"true")) == "No such file or directory (os error 2)"
