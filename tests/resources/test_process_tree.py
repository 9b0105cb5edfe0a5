"""The processes of a command and their memory, seen in /proc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from execserver.resources.process_tree import ProcessTree, members_of, memory_of
from tests.support.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """Start a shell with two sleepers, one of them in a session of its own."""
    script = "sleep 300 & setsid sleep 300 & wait"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        yield process
        ProcessTree(process.pid).kill()


def pids(tree: ProcessTree) -> set[int]:
    return {seen.pid for seen in tree.look()}


def test_descendants_are_found_in_other_sessions_too(shell: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(shell.pid)
    wait_until(lambda: len(pids(tree)) == 3, 20)
    assert {shell.pid, os.getpid()} & pids(tree) == {shell.pid}


def test_what_was_seen_is_not_lost_with_its_parent(shell: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(shell.pid)
    wait_until(lambda: len(pids(tree)) == 3, 20)
    shell.kill()
    shell.wait()
    assert len(pids(tree)) == 2
    tree.kill()
    wait_until(lambda: not tree.look(), 20)


def test_memory_that_is_shared_counts_once_where_it_matters() -> None:
    members = members_of([os.getpid()])
    resident = memory_of(members, 2**60)
    assert MIB < memory_of(members, 1) <= resident
    assert memory_of(members_of([2**22 + 1]), 1) == 0
