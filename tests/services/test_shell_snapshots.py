"""Captures: once for each key, shared, bounded, and never an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.protocol.environment import ShellInfo
from execserver.protocol.errors import InternalError
from execserver.protocol.process import ShellSnapshotRequest
from execserver.services.launch.shell_snapshots import SessionSnapshots
from execserver.services.launch.spawner import Child, Spawner, SpawnSpec
from tests.services.spawning import PATH, spawner
from tests.support.waiting import wait_until

BASH = ShellSnapshotRequest(scope_id="s", shell=ShellInfo(name="bash", path="/bin/bash"))


class Starter:
    """Starts captures with a home of the test's own, and counts them."""

    def __init__(self, home: Path, owner: Spawner) -> None:
        self.home = home
        self.children: list[Child] = []
        self._owner = owner

    def rc(self, text: str) -> None:
        """Write the start-up file of login shells."""
        (self.home / ".bash_profile").write_text(text)

    def start(self, argv: list[str]) -> Child:
        """Start a capture."""
        env = PATH | {b"HOME": str(self.home).encode()}
        child = self._owner.spawn(SpawnSpec([word.encode() for word in argv], env, b"/"))
        self.children.append(child)
        return child


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    with spawner() as owner:
        yield Starter(tmp_path, owner)


def exports(snapshots: SessionSnapshots, starter: Starter, key: str = "k") -> dict[bytes, bytes] | None:
    found = snapshots.find(key, BASH, {}, starter.start)
    return None if found is None else found.exports


def test_the_shell_is_started_once_for_each_key(starter: Starter) -> None:
    starter.rc("export A=1; echo noise; echo noise >&2")
    snapshots = SessionSnapshots()
    assert not snapshots.at_once("k")
    for key in ("k", "k", "other"):
        found = exports(snapshots, starter, key)
        assert found is not None
        assert found[b"A"] == b"1"
    assert len(starter.children) == 2
    assert snapshots.at_once("k")


def test_its_processes_are_ended(starter: Starter) -> None:
    starter.rc("trap '' TERM; sleep 1000 &")
    assert exports(SessionSnapshots(), starter) is not None
    wait_until(lambda: starter.children[0].exited, pause=gevent.sleep)


def test_those_who_come_meanwhile_wait_for_the_same_one(starter: Starter) -> None:
    starter.rc("export A=1; sleep 0.1")
    snapshots = SessionSnapshots()
    waiting = [gevent.spawn(exports, snapshots, starter) for _ in range(5)]
    gevent.joinall(waiting, timeout=30)
    assert [found.value is not None for found in waiting] == [True] * 5
    assert len(starter.children) == 1


def test_one_that_hangs_is_given_up_and_killed(starter: Starter) -> None:
    starter.rc("sleep 1000")
    assert exports(SessionSnapshots(limit_s=0.2), starter) is None
    wait_until(lambda: starter.children[0].exited, pause=gevent.sleep)


@pytest.mark.parametrize("text", ["exit 3", "exec true", "yes", "yes >&2 & exit", "kill -9 $$"])
def test_what_goes_wrong_is_no_error(starter: Starter, text: str) -> None:
    starter.rc(text)
    assert exports(SessionSnapshots(), starter) is None
    wait_until(lambda: starter.children[0].exited, pause=gevent.sleep)


def test_noise_on_stderr_does_not_block_it(starter: Starter) -> None:
    starter.rc("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; export A=1")
    found = exports(SessionSnapshots(), starter)
    assert found is not None
    assert found[b"A"] == b"1"


def test_a_shell_that_cannot_be_started_is_no_error() -> None:
    def start(argv: list[str]) -> Child:
        raise InternalError("no")

    assert SessionSnapshots().find("k", BASH, {}, start) is None
