"""A control group of a real kernel: processes begin in it, and end with it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from execserver.resources.control_group import ControlGroup
from execserver.sandbox.kernel.namespaces import fork_into
from execserver.sandbox.kernel.syscalls import Kernel
from tests.resources.groups import a_group
from tests.support.waiting import wait_until

KERNEL = Kernel()
MANY = 1200


def sleeper_in(group: ControlGroup) -> int:
    """Fork a child into a group that waits for its end."""
    pid, _ = fork_into(KERNEL, 0, group=group.fd)
    if pid == 0:
        try:
            signal.pause()
        finally:
            os._exit(0)
    return pid


def test_a_fork_begins_in_the_group() -> None:
    with a_group() as group:
        assert not group.is_populated
        pid = sleeper_in(group)
        assert (group.pids, group.is_populated, group.remove()) == ([pid], True, False)
        group.kill()
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        wait_until(lambda: not group.is_populated, 10)


def test_all_end_at_once_also_where_the_kernel_cannot_do_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_group() as group:
        pids = [sleeper_in(group) for _ in range(5)]
        write = ControlGroup.write

        def without_kill(self: ControlGroup, name: str, value: str) -> None:
            if name == "cgroup.kill":
                raise FileNotFoundError(name)
            write(self, name, value)

        monkeypatch.setattr(ControlGroup, "write", without_kill)
        group.kill()
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [signal.SIGKILL] * 5
        monkeypatch.undo()


def test_what_is_not_there_counts_nothing() -> None:
    with a_group() as group:
        assert (group.read("no-such-file"), group.numbers("no-such-file"), group.number("no-such-file")) == (
            "",
            {},
            None,
        )
        assert group.ooms == 0


def test_a_fork_into_a_group_that_is_gone_fails() -> None:
    with a_group() as group:
        gone = ControlGroup.make(f"{group.path}/gone")
        os.rmdir(gone.path)
        with pytest.raises(OSError, match="clone3"):
            fork_into(KERNEL, 0, group=gone.fd)
        assert gone.remove()


def test_a_kernel_without_the_call_starts_nothing_outside_of_the_group() -> None:
    with a_group() as group, pytest.raises(OSError, match="clone3"):
        fork_into(Kernel(without=["clone3"]), 0, group=group.fd)


# Small, since many forks of a process as large as that of the tests take a minute.
MANY_SLEEPERS = """
import os, signal, sys
pids = [os.getpid()]
while len(pids) < int(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pids.append(pid)
print(*pids, flush=True)
signal.pause()
"""


def test_all_processes_of_a_large_group_are_listed() -> None:
    """A list of processes longer than a page: who is behind it would count for no limit."""
    with a_group() as group:
        out, into = os.pipe()
        first, _ = fork_into(KERNEL, 0, group=group.fd)
        if first == 0:
            try:
                os.dup2(into, 1)
                os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", MANY_SLEEPERS, str(MANY)])
            finally:
                os._exit(1)
        os.close(into)
        try:
            with os.fdopen(out) as told:
                group_of_many = [int(pid) for pid in told.readline().split()]
            assert len(group_of_many) == MANY
            assert sorted(group.pids) == sorted(group_of_many)
        finally:
            group.kill()
            os.waitpid(first, 0)
        wait_until(lambda: not group.is_populated, 20)
