"""The processes of a command and their memory, seen in /proc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from execserver.resources import process_tree
from execserver.resources.process_tree import ProcessTree, Seen, members_of, memory_of
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


def table(monkeypatch: pytest.MonkeyPatch, *rows: tuple[int, int, int, int]) -> None:
    """Let the machine have these processes only: pid, parent, session, start time."""
    everybody: dict[int, Seen] = {}
    for pid, parent, session, start in rows:
        fields = [b"0"] * 22
        fields[1], fields[3], fields[19] = b"%d" % parent, b"%d" % session, b"%d" % start
        everybody[pid] = Seen(pid, fields)
    monkeypatch.setattr(process_tree, "_all_pids", lambda: list(everybody))
    monkeypatch.setattr(process_tree, "_seen", everybody.get)


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_who_gets_the_number_of_an_ended_leader_is_no_member(
    is_handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next command with that number would be counted, and killed, with what the first one left."""
    tree = ProcessTree(10)
    table(monkeypatch, (1, 0, 1, 1), (10, 1, 10, 50), (11, 10, 10, 51), (12, 11, 12, 52))
    assert pids(tree) == {10, 11, 12}
    table(monkeypatch, (1, 0, 1, 1), (11, 1, 10, 51), (12, 1, 12, 52), (13, 11, 10, 53))
    assert pids(tree) == {11, 12, 13}  # the leader has ended, the session has not
    table(monkeypatch, (1, 0, 1, 1), (12, 1, 12, 52))
    assert pids(tree) == {12}
    if is_handed_over:
        tree = ProcessTree(10, tree.known)
    table(monkeypatch, (1, 0, 1, 1), (12, 1, 12, 52), (10, 1, 10, 90), (14, 10, 10, 91))
    assert pids(tree) == {12}
    table(monkeypatch, (1, 0, 1, 1), (12, 1, 12, 52), (14, 1, 10, 91))
    assert pids(tree) == {12}


def test_a_tree_of_nobody_has_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Session 0 is that of the kernel's threads, and in a container that of who came from outside."""
    table(monkeypatch, (1, 0, 0, 1), (2, 0, 0, 1))
    assert pids(ProcessTree(0, {})) == set()


@pytest.mark.parametrize("first", range(9, 25))
def test_no_parent_sees_its_child_die_of_the_kill(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell would say so and exit with 137: by itself, and nobody could tell that it was the limit."""
    killed: list[int] = []
    monkeypatch.setattr(process_tree, "_kill", lambda seen: killed.append(seen.pid))
    numbers = [first, first - 1, first - 3, first - 7]  # as they come out after the largest pid
    chain = zip(numbers, [1, *numbers], strict=False)
    table(monkeypatch, (1, 0, 1, 1), *((pid, parent, numbers[0], 60) for pid, parent in chain))
    ProcessTree(first).kill()
    assert killed == numbers * 3


def test_parents_in_a_circle_are_killed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen when a number becomes another process's between the looks at two."""
    killed: list[int] = []
    monkeypatch.setattr(process_tree, "_kill", lambda seen: killed.append(seen.pid))
    table(monkeypatch, (10, 1, 10, 60), (11, 12, 10, 60), (12, 11, 10, 60))
    ProcessTree(10).kill()
    assert killed[0] == 10
    assert sorted(killed) == [10] * 3 + [11] * 3 + [12] * 3
