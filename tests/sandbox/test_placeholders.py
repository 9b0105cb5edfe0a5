"""Placeholders of missing protected paths: made, shared, and removed by whoever comes last."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox import owners
from execserver.sandbox.placeholder_cleaning import clean
from execserver.sandbox.placeholder_files import PlaceholderError, identity_of
from execserver.sandbox.placeholder_host import PlaceholderHost
from execserver.sandbox.placeholder_records import GOING, RecordFolder, private_folder, state_folder
from execserver.sandbox.placeholders import Placeholders
from execserver.sandbox.plan import (
    READ,
    ROOT_READ_ONLY,
    WRITE,
    Missing,
    Mount,
    ViewPlan,
)
from tests.support.views import FREE_UID, become, give, in_child, open_folder

NOWHERE = b"/nowhere"


class Place:
    """A workspace, a folder for records, and plans for the workspace."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        state = private_folder(os.fsencode(folder / "state"))
        assert state is not None
        self.state = state
        self.runtime_dir = os.fsencode(folder)
        self.other_state = os.fsencode(folder / "other")

    def owner(self) -> Placeholders:
        return Placeholders(self.state, (self.other_state,))

    def owner_elsewhere(self) -> Placeholders:
        """An owner of the same user, started with another folder for its records."""
        private_folder(self.other_state)
        return Placeholders(self.other_state, (self.state,))

    def missing(self, name: str = ".git", directory: bool = True) -> Missing:
        path = os.fsencode(self.workspace / name)
        parent = identity_of(os.lstat(os.path.dirname(path)))
        return Missing(path, parent, directory, metadata=name.startswith("."))

    def plan(self, *names: str) -> ViewPlan:
        missing = tuple(self.missing(name) for name in names or (".git",))
        return ViewPlan(ROOT_READ_ONLY, missing=missing)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.workspace))

    def records(self) -> list[bytes]:
        return os.listdir(self.state)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def open_place() -> Iterator[Place]:
    with open_folder() as folder:
        yield Place(folder)


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


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
    plan = ViewPlan(ROOT_READ_ONLY, missing=(place.missing("secret", directory=False),))
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
    with pytest.raises(PlaceholderError):
        owner.acquire(place.plan())
    moved = place.plan()
    place.workspace.rename(place.workspace.with_name("moved"))
    place.workspace.mkdir()
    with pytest.raises(PlaceholderError):
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
    used = other.acquire(ViewPlan(ROOT_READ_ONLY, mounts=(mount,)))
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
    with pytest.raises(PlaceholderError, match=r"something was put in the place of \.git"):
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
    with pytest.raises(PlaceholderError, match="something was put in the place"):
        owner.acquire(plan)
    assert outside.exists()
    owner.close()


def test_a_replaced_parent_refuses_the_view(place: Place, tmp_path: Path) -> None:
    owner = place.owner()
    plan = place.plan()
    os.rename(place.workspace, tmp_path / "moved")
    place.workspace.mkdir()
    with pytest.raises(PlaceholderError, match="was replaced"):
        owner.acquire(plan)
    os.rmdir(place.workspace)
    os.symlink(tmp_path / "moved", place.workspace)
    with pytest.raises(PlaceholderError, match="cannot be covered"):
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


def test_without_a_folder_for_records_only_plans_that_need_none_are_taken(place: Place) -> None:
    owner = Placeholders(None)
    mounts = (Mount(WRITE, os.fsencode(place.workspace), os.fsencode(place.workspace)),)
    owner.release(owner.acquire(ViewPlan(ROOT_READ_ONLY, mounts=mounts)))
    with pytest.raises(PlaceholderError, match="no private folder"):
        owner.acquire(place.plan())
    owner.close()


def test_a_failure_in_the_middle_leaves_nothing(place: Place) -> None:
    owner = place.owner()
    gone = Missing(os.fsencode(place.workspace / "no" / ".git"), (1, 2, stat.S_IFDIR), True, True)
    with pytest.raises(PlaceholderError, match="No such file or directory"):
        owner.acquire(ViewPlan(ROOT_READ_ONLY, missing=(*place.plan().missing, gone)))
    assert place.names() == []
    owner.close()
    assert place.records() == []


def killed_owner(place: Place) -> int:
    """Have a process make a placeholder; return its pid."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        place.owner().acquire(place.plan())
        os.write(tell, b"x")
        signal.pause()
    os.close(tell)
    assert os.read(told, 1) == b"x"
    os.close(told)
    return pid


def test_what_a_killed_owner_made_is_cleaned_and_a_living_ones_is_not(place: Place) -> None:
    pid = killed_owner(place)
    clean(place.state)
    assert place.names() == [".git"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    clean(place.state)
    assert (place.names(), place.records()) == ([], [])


def test_a_killed_owners_placeholder_in_use_is_cleaned_by_its_last_user(place: Place) -> None:
    pid = killed_owner(place)
    other = place.owner()
    used = other.acquire(place.plan())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    clean(place.state)
    assert place.names() == [".git"]
    other.release(used)
    assert place.names() == []
    other.close()
    assert place.records() == []


def test_a_record_whose_object_was_never_made_removes_nothing_of_the_users(place: Place) -> None:
    owner_folder = place.state + b"/1-dead"
    os.mkdir(owner_folder)
    (Path(os.fsdecode(owner_folder)) / "lock").touch()
    record = b"%020d %020d d %b" % (0, 0, os.fsencode(place.workspace / ".git"))
    (Path(os.fsdecode(owner_folder)) / "1").write_bytes(record)
    (Path(os.fsdecode(owner_folder)) / "2").write_bytes(b"nonsense")
    (place.workspace / ".git").mkdir()
    clean(place.state)
    assert (place.names(), place.records()) == ([".git"], [])


def test_a_record_of_an_object_that_was_made_but_not_noted_is_cleaned(place: Place) -> None:
    owner_folder = place.state + b"/1-dead"
    os.mkdir(owner_folder)
    (Path(os.fsdecode(owner_folder)) / "lock").touch()
    record = b"%020d %020d d %b" % (0, 0, os.fsencode(place.workspace / ".git"))
    (Path(os.fsdecode(owner_folder)) / "1").write_bytes(record)
    (place.workspace / ".git").mkdir(0o555)
    clean(place.state)
    assert (place.names(), place.records()) == ([], [])


@pytest.mark.parametrize("pid", ["x", "-1", "9" * 30, ""])
def test_notes_that_no_owner_wrote_end_nobody(place: Place, pid: str) -> None:
    """Whoever makes a folder where a user's records may lie must not stop that user's servers, nor root's."""
    owner = place.owner()
    lease = owner.acquire(place.plan())
    found = os.stat(place.workspace / ".git")
    _, started, *rest = owners.new_name().decode().split("-")
    forged = Path(os.fsdecode(place.other_state)) / "-".join([pid, started, *rest])
    forged.mkdir(0o700, parents=True)
    forged.parent.chmod(0o700)
    (forged / owners.LOCK.decode()).touch()  # held by nobody
    (forged / f"1.{found.st_dev}.{found.st_ino}.used").touch()
    owner.release(lease)
    owner.close()
    assert place.names() == []


@pytest.mark.parametrize("name", ["1.a.b.made", "2.1.x.going"])
def test_notes_with_strange_names_are_dropped(place: Place, name: str) -> None:
    dead = Path(os.fsdecode(place.state)) / "left-00"
    dead.mkdir()
    (dead / name).write_bytes(b"%020d %020d d /nowhere" % (0, 0))
    (dead / "3").write_bytes(b"%020x %020d d /nowhere" % (0xABC, 0))
    clean(place.state)
    assert place.records() == []


def test_the_state_folder_is_private_or_there_is_none(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(0o700)
    temp = tmp_path / "tmp"
    temp.mkdir()
    folder = state_folder(os.fsencode(runtime), os.fsencode(temp), run_dir=NOWHERE)
    assert folder == os.fsencode(runtime / "execserver")
    assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
    own = b"execserver-records-%d" % os.geteuid()
    assert state_folder(None, os.fsencode(temp), run_dir=NOWHERE) == os.fsencode(temp) + b"/" + own
    assert state_folder(b"relative", os.fsencode(temp), run_dir=NOWHERE) == os.fsencode(temp) + b"/" + own


def test_a_name_that_somebody_else_took_is_refused(tmp_path: Path) -> None:
    own = os.fsencode(tmp_path) + b"/execserver-records-%d" % os.geteuid()
    (tmp_path / "elsewhere").mkdir(0o700)
    os.symlink(tmp_path / "elsewhere", own)
    assert state_folder(None, os.fsencode(tmp_path), run_dir=NOWHERE) is None
    os.unlink(own)
    os.mkdir(own, 0o755)
    os.chmod(own, 0o755)
    assert state_folder(None, os.fsencode(tmp_path), run_dir=NOWHERE) is None
    assert state_folder(None, os.fsencode(tmp_path / "missing"), run_dir=NOWHERE) is None


def test_a_placeholder_in_use_counts_as_absent_and_its_look_alike_does_not(place: Place) -> None:
    owner = Placeholders(state_folder(place.runtime_dir))
    host = PlaceholderHost(runtime_dir=place.runtime_dir)
    (place.workspace / "own").mkdir(0o555)
    lease = owner.acquire(
        ViewPlan(ROOT_READ_ONLY, missing=(place.missing(), place.missing("file", directory=False)))
    )
    seen = {name: host.stamp(os.fsencode(place.workspace / name)) is not None for name in place.names()}
    assert seen == {".git": False, "file": False, "own": True}
    owner.release(lease)
    owner.close()


def test_the_usual_places_come_before_the_temporary_folder(tmp_path: Path) -> None:
    run, temp = os.fsencode(tmp_path / "run"), os.fsencode(tmp_path)
    os.makedirs(run + b"/user/%d" % os.geteuid())
    assert state_folder(None, temp, run_dir=run) == run + b"/user/%d/execserver" % os.geteuid()
    os.rmdir(run + b"/user/%d/execserver" % os.geteuid())
    os.rmdir(run + b"/user/%d" % os.geteuid())
    own = b"/execserver-records-%d" % os.geteuid()
    assert state_folder(None, temp, make=False, run_dir=run) is None
    assert state_folder(None, temp, run_dir=run) == (run if os.geteuid() == 0 else temp) + own


def test_a_forged_record_removes_nothing_but_what_looks_like_a_placeholder(place: Place) -> None:
    owner_folder = place.state + b"/1-dead"
    os.mkdir(owner_folder)
    (Path(os.fsdecode(owner_folder)) / "lock").touch()
    victim = place.workspace / "empty"
    victim.mkdir()
    found = os.lstat(victim)
    record = b"%020d %020d d %b" % (found.st_dev, found.st_ino, os.fsencode(victim))
    (Path(os.fsdecode(owner_folder)) / "1").write_bytes(record)
    clean(place.state)
    assert place.names() == ["empty"]


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


def test_a_look_alike_of_another_user_refuses_the_view_where_it_may_go(
    open_place: Place,
) -> None:
    place = open_place
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's placeholder")
    give(place.workspace.parent, FREE_UID)
    plan = place.plan()
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git").chmod(0o555)

    def another_owner() -> int:
        owner = Placeholders(private_folder(os.fsencode(place.workspace.parent / "theirs")))
        with pytest.raises(PlaceholderError, match="belongs to user 0: if a command of theirs runs here"):
            owner.acquire(plan)
        return 0

    assert in_child(another_owner, FREE_UID).status == 0
    assert place.names() == [".git"]


def test_root_is_refused_where_a_users_placeholder_is_and_not_where_a_users_folder_is(
    open_place: Place,
) -> None:
    place = open_place
    if os.geteuid() != 0:
        pytest.skip("only root uses what others have made")
    give(place.workspace.parent, FREE_UID)
    plan, root = place.plan(), place.owner()

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        become(FREE_UID)
        owner = Placeholders(state_folder(None, run_dir=NOWHERE))
        lease = owner.acquire(plan)
        theirs.send(b"x")
        theirs.recv(1)
        owner.release(lease)
        owner.close()
        os._exit(0)
    assert ours.recv(1) == b"x"
    with pytest.raises(PlaceholderError, match=f"belongs to user {FREE_UID}"):
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


def notes_of(place: Place) -> list[str]:
    """Return the notes of the only owner there is."""
    (own,) = place.records()
    return sorted(os.fsdecode(name) for name in os.listdir(place.state + b"/" + own) if name != owners.LOCK)


def test_the_note_of_what_was_removed_serves_the_next_placeholder_of_its_path(place: Place) -> None:
    owner = place.owner()
    first = owner.acquire(place.plan())
    before = first.held[0].identity
    owner.release(first)
    # Nobody else gets the inode while the note names it, so it is nobody's.
    assert notes_of(place) == [f"1.{before[0]}.{before[1]}.going"]
    second = owner.acquire(place.plan(".git", ".codex"))
    now = [one.identity for one in second.held]
    assert notes_of(place) == [f"{n}.{one[0]}.{one[1]}.made" for n, one in enumerate(now, 1)]
    assert before not in now
    owner.release(second)
    owner.retry()
    assert (notes_of(place), owner.pending) == ([], False)
    owner.close()
    assert place.records() == []


def test_a_note_is_not_kept_of_what_could_not_be_removed(place: Place) -> None:
    owner = place.owner()
    lease = owner.acquire(place.plan(".git", ".codex"))
    os.chmod(place.workspace / ".git", 0o755)
    (place.workspace / ".git" / "HEAD").write_text("x")
    os.chmod(place.workspace / ".git", 0o555)
    owner.release(lease)
    assert [note.partition(".")[0] for note in notes_of(place)] == ["2"]
    assert place.names() == [".git"]
    owner.close()


def test_a_note_kept_by_who_is_killed_removes_nothing(place: Place) -> None:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        owner = place.owner()
        owner.release(owner.acquire(place.plan()))
        (place.workspace / ".git").mkdir(0o555)  # the user's, with another inode
        os.write(tell, b"x")
        signal.pause()
    os.close(tell)
    assert os.read(told, 1) == b"x"
    os.close(told)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(notes_of(place)) == 1
    clean(place.state)
    assert (place.names(), place.records()) == ([".git"], [])


@pytest.mark.parametrize("links_are_counted", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_another_owner_is_seen_where_folders_links_are_counted_and_where_not(
    links_are_counted: bool, elsewhere: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = place.owner()
    real, folders = os.lstat, (place.state, place.other_state)

    def lstat(path: bytes) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:3], 1, *found[4:])) if path in folders else found  # as in Btrfs

    if not links_are_counted:
        monkeypatch.setattr(os, "lstat", lstat)
    made = maker.acquire(place.plan())
    other = place.owner_elsewhere() if elsewhere else place.owner()
    used = other.acquire(place.plan())
    maker.release(made)
    assert (place.names(), maker.pending) == ([".git"], True)
    other.release(used)
    assert not maker.retry()
    assert place.names() == []
    maker.close()
    other.close()


def test_who_is_alone_lists_no_records(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = place.owner()
    owner.release(owner.acquire(place.plan()))
    real, listed = os.listdir, []

    def listdir(what: int | bytes) -> list[str] | list[bytes]:
        listed.append(what)
        return real(what)

    monkeypatch.setattr(os, "listdir", listdir)
    owner.release(owner.acquire(place.plan()))
    assert [what for what in listed if isinstance(what, bytes)] == []
    monkeypatch.undo()
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
