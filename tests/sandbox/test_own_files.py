"""Which mounts keep the program's own files out of reach."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from execserver import runtime_paths
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import own_files
from execserver.sandbox.masks.records import record_places
from execserver.sandbox.own_files import keep_own_files, places_of_the_program
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.policy.host import Host


class Files:
    """The folders of a user and what is added to plans for them."""

    def __init__(self, home: Path) -> None:
        self.home = os.fsencode(home)
        self.run = self.home + b"/run"
        self.records = self.run + b"/execserver"
        self.unpacked = self.home + b"/.cache/execserver"
        self.environ = {b"XDG_RUNTIME_DIR": self.run, b"CODEX_HOME": self.home + b"/.codex"}
        os.mkdir(self.run, 0o700)
        os.makedirs(self.unpacked)

    def plan(self, root: str, *mounts: Mount) -> SandboxPlan:
        return keep_own_files(SandboxPlan(root, mounts=mounts), Host(), self.environ)

    def added(self, root: str, *mounts: Mount) -> list[tuple[str, bytes]]:
        plan = self.plan(root, *mounts)
        assert plan.mounts[: len(mounts)] == mounts
        assert all(mount.identity is not None for mount in plan.mounts[len(mounts) :])
        return [(mount.kind, mount.path) for mount in plan.mounts[len(mounts) :]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path)
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: made.unpacked))
    monkeypatch.setattr(runtime_paths, "_home", [made.home])
    monkeypatch.setattr(own_files, "_TEMPORARY", (made.home + b"/tmp",))
    monkeypatch.setattr(own_files, "record_places", lambda runtime_dir: (runtime_dir + b"/execserver",))
    monkeypatch.setattr(own_files, "token_stores", lambda _: [])  # `test_own_tokens` has them
    return made


def write(path: bytes) -> Mount:
    return Mount(WRITE, path, path)


def test_where_nothing_of_it_is_writable_nothing_is_added(files: Files) -> None:
    read = Mount(READ, files.home, files.home)
    assert files.added(ROOT_READ_ONLY) == []
    assert files.added(ROOT_READ_ONLY, write(b"/elsewhere")) == []
    assert files.added(ROOT_EMPTY, write(files.home + b"/.cache/other")) == []
    assert files.added(ROOT_WRITABLE, read) == []
    assert files.added(ROOT_HOST) == []


def test_records_are_hidden_and_the_program_kept(files: Files) -> None:
    assert files.added(ROOT_READ_ONLY, write(files.run)) == [(HIDDEN_DIRECTORY, files.records)]
    assert files.added(ROOT_READ_ONLY, write(files.home + b"/.cache")) == [(READ, files.unpacked)]
    assert files.added(ROOT_EMPTY, write(files.records)) == [(HIDDEN_DIRECTORY, files.records)]


def test_every_folder_where_records_are_looked_for_is_hidden(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note that a command made in any of them would count for the objects of other commands."""
    monkeypatch.setattr(own_files, "record_places", record_places)
    temporary = b"/tmp/execserver-records-%d" % os.geteuid()
    assert files.plan(ROOT_READ_ONLY, write(files.run), write(b"/tmp")).denied == (files.records, temporary)
    assert stat.S_IMODE(os.lstat(temporary).st_mode) == 0o700


def test_what_another_user_took_is_no_place(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.mkdir(files.records)
    os.chown(files.records, 65534, 65534)
    assert files.added(ROOT_READ_ONLY, write(files.run)) == []


def test_folders_on_the_way_cannot_be_moved(files: Files) -> None:
    own = b"/execserver-%d" % os.geteuid()
    assert files.added(ROOT_READ_ONLY, write(files.home)) == [
        (WRITE, files.run),
        (HIDDEN_DIRECTORY, files.records),
        (WRITE, files.home + b"/.cache"),
        (READ, files.unpacked),
        (WRITE, files.home + b"/tmp"),
        (READ, files.home + b"/tmp" + own),
        (WRITE, files.home + b"/.codex"),
        (READ, files.home + b"/.codex/proxy"),
    ]
    added = files.added(ROOT_WRITABLE)
    assert added[0] == (WRITE, b"/" + files.home.split(b"/")[1])
    assert (READ, files.unpacked) in added


def test_what_keeps_them_counts_for_other_back_ends(files: Files) -> None:
    plan = files.plan(ROOT_READ_ONLY, write(files.home + b"/.cache"), write(files.run))
    assert (plan.read_only, plan.denied) == ((files.unpacked,), (files.records,))


def test_from_source_the_places_are_closed_too(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: None))
    assert files.added(ROOT_READ_ONLY, write(files.home + b"/.cache")) == [(READ, files.unpacked)]


def test_every_place_a_start_may_unpack_into_is_known(files: Files) -> None:
    variables = ("EXECSERVER_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TMPDIR")
    environ = {name.encode(): files.home + b"/" + name.encode() for name in variables}
    own = b"/execserver-%d" % os.geteuid()
    found = places_of_the_program({**environ, b"HOME": b"relative"})
    assert [path.removeprefix(files.home) for path in found] == [
        b"/.cache/execserver",
        b"/EXECSERVER_CACHE_DIR",
        b"/XDG_CACHE_HOME/execserver",
        b"/TMPDIR" + own,
        b"/tmp" + own,
    ]
    assert files.home + b"/HOME/.cache/execserver" in places_of_the_program(environ)


def test_what_is_not_there_yet_is_made_before_a_command_can(files: Files) -> None:
    files.environ[b"XDG_CACHE_HOME"] = files.home + b"/new/er"
    files.added(ROOT_READ_ONLY, write(files.home))
    for path in (b"/new", b"/new/er", b"/new/er/execserver"):
        assert os.lstat(files.home + path).st_mode == stat.S_IFDIR | 0o700


def test_what_this_user_cannot_make_needs_no_mount(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: bytes, mode: int) -> None:
        raise PermissionError(errno.EACCES, "refused")

    monkeypatch.setattr(os, "mkdir", refuse)
    files.environ[b"XDG_CACHE_HOME"] = files.home + b"/.cache/new"
    assert files.added(ROOT_READ_ONLY, write(files.home + b"/.cache")) == [(READ, files.unpacked)]


def test_a_place_below_a_file_refuses_the_plan(files: Files) -> None:
    """A command could remove the file and make folders there."""
    Path(os.fsdecode(files.home), ".cache", "file").touch()
    files.environ[b"XDG_CACHE_HOME"] = files.home + b"/.cache/file"
    with pytest.raises(NotADirectoryError):
        files.plan(ROOT_READ_ONLY, write(files.home + b"/.cache"))


def test_masks_below_a_folder_on_the_way_stay_on_top(files: Files) -> None:
    """What a pattern matches is masked alone; a mount over a folder above it would uncover it."""
    mask = Mount(HIDDEN_FILE, files.home + b"/.cache/secret")
    plan = files.plan(ROOT_READ_ONLY, write(files.home), mask)
    paths = [mount.path for mount in plan.mounts]
    assert paths.index(files.home + b"/.cache") < paths.index(mask.path)
