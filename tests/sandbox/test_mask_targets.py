"""Placeholders of missing protected paths: made, shared, and removed by whoever comes last."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from execserver.sandbox.masks.files import MaskTargetError, identity_of
from execserver.sandbox.masks.host import KnownMaskTargets, MaskTargetHost
from execserver.sandbox.masks.records import private_folder, state_folder
from execserver.sandbox.masks.targets import MaskTargets
from execserver.sandbox.plan import (
    READ,
    ROOT_READ_ONLY,
    WRITE,
    Missing,
    Mount,
    SandboxPlan,
)
from tests.sandbox.mask_target_place import NOWHERE, Place
from tests.support.roots import FREE_UID, become, give, in_child

pytestmark = pytest.mark.usefixtures("no_descriptor_stays_open")


def test_a_placeholder_is_there_while_it_is_used_and_gone_afterwards(place: Place) -> None:
    owner = place.owner()
    lease = owner.acquire(place.plan(".git", ".codex"))
    assert place.names() == [".codex", ".git"]
    assert stat.S_IMODE(os.lstat(place.workspace / ".git").st_mode) & 0o222 == 0
    assert [missing.path for missing in lease.covered] == [
        missing.path for missing in place.plan(".git", ".codex").missing
    ]
    owner.release(lease)
    assert place.names() == []
    owner.close()
    assert place.records() == []


def test_a_missing_file_gets_an_empty_file(place: Place) -> None:
    owner = place.owner()
    plan = SandboxPlan(ROOT_READ_ONLY, missing=(place.missing("secret", directory=False),))
    lease = owner.acquire(plan)
    found = os.lstat(place.workspace / "secret")
    assert (stat.S_ISREG(found.st_mode), found.st_size) == (True, 0)
    owner.release(lease)
    assert place.names() == []
    owner.close()


def test_two_views_of_one_owner_share_it_until_the_second_ends(place: Place) -> None:
    owner = place.owner()
    first, second = owner.acquire(place.plan()), owner.acquire(place.plan())
    owner.release(first)
    assert place.names() == [".git"]
    owner.release(second)
    assert place.names() == []
    owner.close()


def test_another_view_shares_only_what_still_is_the_placeholder(place: Place) -> None:
    owner = place.owner()
    first = owner.acquire(place.plan())
    assert owner.acquire(place.plan()).held == first.held
    (place.workspace / ".git").rmdir()
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git" / "config").write_text("")
    with pytest.raises(MaskTargetError):
        owner.acquire(place.plan())
    moved = place.plan()
    place.workspace.rename(place.workspace.with_name("moved"))
    place.workspace.mkdir()
    with pytest.raises(MaskTargetError):
        owner.acquire(moved)
    assert [held.users for held in first.held] == [2]
    owner.close()


@pytest.mark.parametrize("maker_ends_first", [True, False])
def test_two_owners_never_drop_each_others_cover(place: Place, maker_ends_first: bool) -> None:
    maker, other = place.owner(), place.owner_elsewhere()
    made, used = maker.acquire(place.plan()), other.acquire(place.plan())
    if maker_ends_first:
        maker.release(made)
        assert (place.names(), maker.pending) == ([".git"], True)
        assert maker.retry()
        other.release(used)
        assert not maker.retry()
    else:
        other.release(used)
        assert place.names() == [".git"]
        maker.release(made)
    assert place.names() == []
    maker.close()
    other.close()


def test_a_plan_that_took_a_placeholder_for_an_existing_folder_keeps_it_alive(place: Place) -> None:
    maker, other = place.owner(), place.owner()
    made = maker.acquire(place.plan())
    path = os.fsencode(place.workspace / ".git")
    mount = Mount(READ, path, path, identity_of(os.lstat(path)))
    used = other.acquire(SandboxPlan(ROOT_READ_ONLY, mounts=(mount,)))
    maker.release(made)
    assert place.names() == [".git"]
    other.release(used)
    assert not maker.retry()
    assert place.names() == []
    maker.close()
    other.close()


def test_a_placeholder_that_is_used_again_before_it_could_be_removed_stays(place: Place) -> None:
    owner, other = place.owner(), place.owner()
    first, used = owner.acquire(place.plan()), other.acquire(place.plan())
    owner.release(first)
    again = owner.acquire(place.plan())
    assert not owner.pending
    other.release(used)
    assert place.names() == [".git"]
    owner.release(again)
    assert place.names() == []
    owner.close()
    other.close()


def test_a_folder_that_the_user_had_made_is_never_removed(place: Place) -> None:
    owner = place.owner()
    plan = place.plan()
    (place.workspace / ".git").mkdir(0o555)
    owner.release(owner.acquire(plan))
    assert place.names() == [".git"]
    owner.close()


def test_what_somebody_put_into_or_in_the_place_of_a_placeholder_stays(place: Place) -> None:
    owner = place.owner()
    lease = owner.acquire(place.plan(".git", ".codex"))
    os.chmod(place.workspace / ".git", 0o755)
    (place.workspace / ".git" / "HEAD").write_text("x")
    os.rmdir(place.workspace / ".codex")
    (place.workspace / ".codex").mkdir()
    owner.release(lease)
    assert place.names() == [".codex", ".git"]
    owner.close()


def test_something_else_at_the_place_refuses_the_view(place: Place) -> None:
    owner = place.owner()
    plan = place.plan(".codex", ".git")
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git" / "HEAD").write_text("x")
    with pytest.raises(MaskTargetError, match=r"something was put in the place of \.git"):
        owner.acquire(plan)
    assert place.names() == [".git"]
    owner.close()
    assert place.records() == []


def test_a_link_at_the_place_is_not_followed(place: Place, tmp_path: Path) -> None:
    owner = place.owner()
    plan = place.plan()
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, place.workspace / ".git")
    with pytest.raises(MaskTargetError, match="something was put in the place"):
        owner.acquire(plan)
    assert outside.exists()
    owner.close()


def test_a_replaced_parent_refuses_the_view(place: Place, tmp_path: Path) -> None:
    owner = place.owner()
    plan = place.plan()
    os.rename(place.workspace, tmp_path / "moved")
    place.workspace.mkdir()
    with pytest.raises(MaskTargetError, match="was replaced"):
        owner.acquire(plan)
    os.rmdir(place.workspace)
    os.symlink(tmp_path / "moved", place.workspace)
    with pytest.raises(MaskTargetError, match="cannot be covered"):
        owner.acquire(plan)
    assert os.listdir(tmp_path / "moved") == []
    owner.close()


def test_a_moved_workspace_is_cleaned_where_it_went(place: Place, tmp_path: Path) -> None:
    owner = place.owner()
    lease = owner.acquire(place.plan())
    os.rename(place.workspace, tmp_path / "moved")
    owner.release(lease)
    assert os.listdir(tmp_path / "moved") == []
    owner.close()


def test_without_a_folder_for_records_only_plans_that_need_none_are_taken(place: Place) -> None:
    owner = MaskTargets(None)
    mounts = (Mount(WRITE, os.fsencode(place.workspace), os.fsencode(place.workspace)),)
    owner.release(owner.acquire(SandboxPlan(ROOT_READ_ONLY, mounts=mounts)))
    with pytest.raises(MaskTargetError, match="no private folder"):
        owner.acquire(place.plan())
    owner.close()


def test_a_failure_in_the_middle_leaves_nothing(place: Place) -> None:
    owner = place.owner()
    gone = Missing(os.fsencode(place.workspace / "no" / ".git"), (1, 2, stat.S_IFDIR), True, True)
    with pytest.raises(MaskTargetError, match="No such file or directory"):
        owner.acquire(SandboxPlan(ROOT_READ_ONLY, missing=(*place.plan().missing, gone)))
    assert place.names() == []
    owner.close()
    assert place.records() == []


def test_a_placeholder_in_use_counts_as_absent_and_its_look_alike_does_not(place: Place) -> None:
    owner = MaskTargets(state_folder(place.runtime_dir))
    host = MaskTargetHost(KnownMaskTargets(place.runtime_dir))
    (place.workspace / "own").mkdir(0o555)
    lease = owner.acquire(
        SandboxPlan(ROOT_READ_ONLY, missing=(place.missing(), place.missing("file", directory=False)))
    )
    seen = {name: host.stamp(os.fsencode(place.workspace / name)) is not None for name in place.names()}
    assert seen == {".git": False, "file": False, "own": True}
    owner.release(lease)
    owner.close()


def test_what_one_host_has_found_to_be_a_placeholder_costs_the_next_no_look_at_the_records(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = MaskTargets(state_folder(place.runtime_dir))
    targets = KnownMaskTargets(place.runtime_dir)
    path = os.fsencode(place.workspace / ".git")
    lease = owner.acquire(place.plan())
    assert MaskTargetHost(targets).stamp(path) is None
    with monkeypatch.context() as without:
        without.delattr(os, "listdir")
        assert MaskTargetHost(targets).stamp(path) is None
    owner.release(lease)
    place.workspace.joinpath(".git").mkdir(0o555)  # somebody's own, perhaps with the same inode number
    assert MaskTargetHost(targets).stamp(path) is not None
    owner.close()


def test_a_look_alike_of_another_user_refuses_the_view_where_it_may_go(
    place: Place,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's placeholder")
    give(place.workspace.parent, FREE_UID)
    plan = place.plan()
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git").chmod(0o555)

    def another_owner() -> int:
        owner = MaskTargets(private_folder(os.fsencode(place.workspace.parent / "theirs")))
        with pytest.raises(MaskTargetError, match="belongs to user 0: if a command of theirs runs here"):
            owner.acquire(plan)
        return 0

    assert in_child(another_owner, FREE_UID).status == 0
    assert place.names() == [".git"]


def test_root_is_refused_where_a_users_placeholder_is_and_not_where_a_users_folder_is(
    place: Place,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root uses what others have made")
    give(place.workspace.parent, FREE_UID)
    plan, root = place.plan(), place.owner()

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        become(FREE_UID)
        owner = MaskTargets(state_folder(None, run_dir=NOWHERE))
        lease = owner.acquire(plan)
        theirs.send(b"x")
        theirs.recv(1)
        owner.release(lease)
        owner.close()
        os._exit(0)
    assert ours.recv(1) == b"x"
    with pytest.raises(MaskTargetError, match=f"belongs to user {FREE_UID}"):
        root.acquire(plan)
    ours.send(b"x")
    assert os.waitpid(pid, 0)[1] == 0
    assert place.names() == []
    (place.workspace / ".git").mkdir(0o555)
    os.chown(place.workspace / ".git", FREE_UID, FREE_UID)
    root.release(root.acquire(plan))
    assert place.names() == [".git"]
    root.close()
    ours.close()
    theirs.close()


def test_what_was_removed_is_closed_by_the_next_retry_or_when_it_becomes_much(place: Place) -> None:
    owner = place.owner()
    before = len(os.listdir("/proc/self/fd"))
    owner.release(owner.acquire(place.plan()))
    assert (place.names(), owner.pending) == ([], True)
    assert not owner.retry()
    assert len(os.listdir("/proc/self/fd")) == before + 1  # the owner's lock
    for _ in range(200):
        owner.release(owner.acquire(place.plan()))
    assert len(os.listdir("/proc/self/fd")) < before + 110
    owner.close()


def test_the_folder_of_several_missing_paths_is_walked_to_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = [], os.open

    def counting(path: bytes | str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == os.fsencode(place.workspace.name):
            opened.append(path)
        return real(path, flags, mode, dir_fd=dir_fd)

    (place.workspace / "sub").mkdir()
    owner = place.owner()
    monkeypatch.setattr(os, "open", counting)
    lease = owner.acquire(place.plan(".git", ".codex", "sub/.git", ".agents"))
    monkeypatch.undo()
    assert (len(opened), place.names()) == (3, [".agents", ".codex", ".git", "sub"])
    assert os.listdir(place.workspace / "sub") == [".git"]
    owner.release(lease)
    owner.close()


def test_a_folder_replaced_between_two_placeholders_is_covered_where_it_went(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, owner, real = place.plan(".git", ".codex"), place.owner(), os.mkdir

    def replace_after(path: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        if path == b".git":
            place.workspace.rename(place.workspace.with_name("moved"))
            place.workspace.mkdir()

    monkeypatch.setattr(os, "mkdir", replace_after)
    lease = owner.acquire(plan)
    monkeypatch.undo()
    # What was planned is covered, where it went; that the path leads there no more is found by the view.
    moved = place.workspace.with_name("moved")
    assert (place.names(), sorted(os.listdir(moved))) == ([], [".codex", ".git"])
    owner.release(lease)
    assert os.listdir(moved) == []
    owner.close()
