from __future__ import annotations

import os
import signal
import subprocess

import pytest

from execserver.services.launch.orphans import Orphanage, wait_for_end
from execserver.zygote.groups import process_stat


def orphan(*command: str) -> int:
    """Start a child that looks like one handed down by a zygote: it leads a session."""
    return os.posix_spawn(f"/bin/{command[0]}", command, {}, setsid=True)


def test_orphans_are_killed_and_reaped_and_their_status_told() -> None:
    told: dict[int, int] = {}
    first, second = orphan("sleep", "60"), orphan("sh", "-c", "trap '' TERM HUP INT; exec sleep 60")
    Orphanage(lambda: (), told.__setitem__).end_orphans()
    assert told == {first: signal.SIGKILL, second: signal.SIGKILL}


def test_one_that_had_ended_before_keeps_its_own_status() -> None:
    told: dict[int, int] = {}
    ended = orphan("sh", "-c", "exit 6")
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    Orphanage(lambda: (), told.__setitem__).end_orphans()
    assert told == {ended: 6 << 8}


def test_zygotes_and_own_children_are_spared() -> None:
    spared = orphan("sleep", "60")
    with subprocess.Popen(["sleep", "60"]) as own:
        Orphanage(lambda: {spared}, lambda pid, status: None).end_orphans()
        assert own.poll() is None
        own.kill()
    assert process_stat(spared) is not None
    os.kill(spared, signal.SIGKILL)
    assert wait_for_end(spared) == signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(spared, 0)


def test_only_the_ended_are_reaped_in_passing() -> None:
    told: dict[int, int] = {}
    running, ended = orphan("sleep", "60"), orphan("true")
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    Orphanage(lambda: (), told.__setitem__).reap_ended_orphans()
    assert told == {ended: 0}
    os.kill(running, signal.SIGKILL)
    wait_for_end(running)


def test_waiting_for_a_child_that_somebody_else_reaped_ends() -> None:
    child = orphan("true")
    os.waitpid(child, 0)
    assert wait_for_end(child) != 0
