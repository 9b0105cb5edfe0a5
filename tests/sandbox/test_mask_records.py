"""Notes of placeholders: what who was killed had made is removed, and nothing that is somebody's."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from execserver.sandbox.masks import owners
from execserver.sandbox.masks.records import state_folder
from execserver.sandbox.masks.stale import clean
from tests.sandbox.mask_target_place import NOWHERE, Place, killed_owner

pytestmark = pytest.mark.usefixtures("no_descriptor_stays_open")


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


def note_of_a_dead_owner(place: Place) -> Path:
    """Leave the note of a killed owner about a `.git` that it was about to make; return where it is."""
    folder = Path(os.fsdecode(place.state)) / "1-dead"
    folder.mkdir()
    (folder / "lock").touch()
    record = folder / "1"
    record.write_bytes(b"%020d %020d d %b" % (0, 0, os.fsencode(place.workspace / ".git")))
    return record


def test_a_record_whose_object_was_never_made_removes_nothing_of_the_users(place: Place) -> None:
    (note_of_a_dead_owner(place).parent / "2").write_bytes(b"nonsense")
    (place.workspace / ".git").mkdir()
    clean(place.state)
    assert (place.names(), place.records()) == ([".git"], [])


def test_a_record_of_an_object_that_was_made_but_not_noted_is_cleaned(place: Place) -> None:
    note_of_a_dead_owner(place)
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
    assert [record.partition(".")[0] for record in notes_of(place)] == ["2"]
    assert place.names() == [".git"]
    owner.close()
    os.chmod(place.workspace / ".git", 0o755)  # or only root could clear up


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
