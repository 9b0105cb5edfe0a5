"""Strangers hold locks on placeholders and on their records, or remove them: it decides nothing."""

from __future__ import annotations

import builtins
import fcntl
import os
import signal
from typing import Any

import pytest

from execserver.sandbox.masks.files import MaskTargetError, identity_of
from execserver.sandbox.masks.host import KnownMaskTargets, MaskTargetHost
from execserver.sandbox.masks.records import GOING, RecordFolder, state_folder
from execserver.sandbox.masks.stale import clean
from execserver.sandbox.masks.targets import MaskTargets
from execserver.sandbox.plan import (
    READ,
    ROOT_READ_ONLY,
    Mount,
    SandboxPlan,
)
from tests.sandbox.mask_target_place import Place, killed_owner

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
    record = remover.add(path, True, GOING, identity)

    def sleep(_: float) -> None:
        monkeypatch.undo()
        if removed:
            there.rmdir()
        record.drop()

    monkeypatch.setattr("time.sleep", sleep)
    owner = place.owner()
    plan = SandboxPlan(ROOT_READ_ONLY, mounts=(Mount(READ, path, path, identity),))
    if removed:
        with pytest.raises(MaskTargetError, match="is being removed"):
            owner.acquire(plan)
    else:
        lease = owner.acquire(plan)
        assert [one.identity for one in lease.held] == [identity]
        owner.release(lease)
    remover.close()
    owner.close()


def test_no_locks_are_read_to_know_a_placeholder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can make the kernel's list of them as long as he likes."""
    owner = MaskTargets(state_folder(place.runtime_dir))
    host = MaskTargetHost(KnownMaskTargets(place.runtime_dir))
    lease = owner.acquire(place.plan())
    opened: list[str] = []
    real_open, real_os_open = builtins.open, os.open

    def open_(path: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(os.fsdecode(path) if isinstance(path, str | bytes) else "")
        return real_open(path, *arguments, **options)

    def os_open(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(os.fsdecode(path))
        return real_os_open(path, *arguments, **options)

    monkeypatch.setattr(builtins, "open", open_)
    monkeypatch.setattr(os, "open", os_open)
    assert host.stamp(os.fsencode(place.workspace / ".git")) is None
    assert opened
    assert not [path for path in opened if "locks" in path]
    monkeypatch.undo()
    owner.release(lease)
    owner.close()
