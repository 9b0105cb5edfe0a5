"""Strangers hold locks on placeholders and on their records, or remove them: it decides nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import time

import pytest

from execserver.sandbox.placeholder_cleaning import clean
from execserver.sandbox.placeholder_files import PlaceholderError, identity_of
from execserver.sandbox.placeholder_host import PlaceholderHost
from execserver.sandbox.placeholder_records import GOING, RecordFolder, state_folder
from execserver.sandbox.placeholders import Placeholders
from execserver.sandbox.plan import (
    READ,
    ROOT_READ_ONLY,
    Mount,
    ViewPlan,
)
from tests.sandbox.placeholder_place import Place, killed_owner

pytestmark = pytest.mark.usefixtures("no_descriptor_stays_open")


@pytest.mark.parametrize("operation", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_strangers_lock_decides_nothing(place: Place, operation: int) -> None:
    owner, other = place.owner(), place.owner()
    first = owner.acquire(place.plan())
    held = os.open(place.workspace / ".git", os.O_RDONLY)
    fcntl.flock(held, operation)
    second = other.acquire(place.plan())
    owner.release(first)
    assert (place.names(), owner.pending) == ([".git"], True)
    other.release(second)
    assert not owner.retry()
    assert place.names() == []
    os.close(held)
    owner.close()
    other.close()


@pytest.mark.parametrize("operation", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_strangers_lock_on_an_empty_folder_of_the_users_refuses_nothing(
    place: Place, operation: int
) -> None:
    owner, plan = place.owner(), place.plan()
    (place.workspace / ".git").mkdir(0o555)
    held = os.open(place.workspace / ".git", os.O_RDONLY)
    fcntl.flock(held, operation)
    lease = owner.acquire(plan)
    assert [one.ours for one in lease.held] == [False]
    owner.release(lease)
    assert place.names() == [".git"]
    os.close(held)
    owner.close()


@pytest.mark.parametrize("operation", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_locks_on_the_records_keep_nothing_on_the_host(place: Place, operation: int) -> None:
    pid = killed_owner(place)
    (folder,) = (os.path.join(place.state, name) for name in os.listdir(place.state))
    held = [os.open(os.path.join(folder, name), os.O_RDONLY) for name in (b"", *os.listdir(folder))]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for one in held:
        fcntl.flock(one, operation)
    clean(place.state)
    assert (place.names(), place.records()) == ([], [])
    for one in held:
        os.close(one)


def test_a_placeholder_that_is_removed_while_it_is_looked_at_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, plan = place.owner(), place.plan()
    there = place.workspace / ".git"
    there.mkdir(0o555)
    real = os.listdir

    def listdir(what: int) -> list[str]:
        monkeypatch.undo()
        there.rmdir()  # as its owner does between our opening it and our looking into it
        return real(what)

    before = real("/proc/self/fd")
    monkeypatch.setattr(os, "listdir", listdir)
    lease = owner.acquire(plan)
    assert [held.ours for held in lease.held] == [True]
    owner.release(lease)
    owner.close()
    assert (place.names(), os.listdir("/proc/self/fd")) == ([], before)


@pytest.mark.parametrize("removed", [True, False])
def test_who_tries_to_remove_a_guarded_placeholder_is_waited_for(
    removed: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = place.workspace / ".git"
    there.mkdir(0o555)
    path, identity = os.fsencode(there), identity_of(os.lstat(there))
    remover = RecordFolder(place.state)
    note = remover.add(path, True, GOING, identity)

    def sleep(_: float) -> None:
        monkeypatch.undo()
        if removed:
            there.rmdir()
        note.drop()

    monkeypatch.setattr("time.sleep", sleep)
    owner = place.owner()
    plan = ViewPlan(ROOT_READ_ONLY, mounts=(Mount(READ, path, path, identity),))
    if removed:
        with pytest.raises(PlaceholderError, match="is being removed"):
            owner.acquire(plan)
    else:
        lease = owner.acquire(plan)
        assert [one.identity for one in lease.held] == [identity]
        owner.release(lease)
    remover.close()
    owner.close()


def test_a_placeholder_is_known_however_many_locks_there_are(place: Place) -> None:
    owner = Placeholders(state_folder(place.runtime_dir))
    host = PlaceholderHost(runtime_dir=place.runtime_dir)
    lease = owner.acquire(place.plan())
    file = os.open(place.workspace.parent / "locked", os.O_RDWR | os.O_CREAT)
    for offset in range(0, 2 * 20_000, 2):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, offset)
    began = time.process_time()
    found = [host.stamp(os.fsencode(place.workspace / ".git")) for _ in range(20)]
    assert found == [None] * 20
    assert time.process_time() - began < 1  # each look took 0.1 s where all locks were read
    os.close(file)
    owner.release(lease)
    owner.close()
