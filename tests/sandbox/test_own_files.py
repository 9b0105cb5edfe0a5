"""Which mounts keep the program's own files out of reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.host import Host
from execserver.sandbox.own_files import keep_own_files
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    READ,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Mount,
    ViewPlan,
)


class Files:
    """The folders of a user and what is added to plans for them."""

    def __init__(self, home: Path) -> None:
        self.home = os.fsencode(home)
        self.run = self.home + b"/run"
        self.records = self.run + b"/execserver"
        self.unpacked = self.home + b"/.cache/execserver"
        os.mkdir(self.run, 0o700)
        os.makedirs(self.unpacked)

    def added(self, root: str, *mounts: Mount) -> list[tuple[str, bytes]]:
        plan = keep_own_files(ViewPlan(root, mounts=mounts), Host(), self.run)
        assert plan.mounts[: len(mounts)] == mounts
        assert all(mount.identity is not None for mount in plan.mounts[len(mounts) :])
        return [(mount.kind, mount.path) for mount in plan.mounts[len(mounts) :]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path)
    monkeypatch.setattr(ExecServerRuntimePaths, "unpacked_folder", staticmethod(lambda: made.unpacked))
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


def test_folders_on_the_way_cannot_be_moved(files: Files) -> None:
    assert files.added(ROOT_READ_ONLY, write(files.home)) == [
        (WRITE, files.run),
        (HIDDEN_DIRECTORY, files.records),
        (WRITE, files.home + b"/.cache"),
        (READ, files.unpacked),
    ]
    added = files.added(ROOT_WRITABLE)
    assert added[0] == (WRITE, b"/" + files.home.split(b"/")[1])
    assert added[-1] == (READ, files.unpacked)


def test_what_keeps_them_counts_for_other_back_ends(files: Files) -> None:
    plan = keep_own_files(ViewPlan(ROOT_READ_ONLY, mounts=(write(files.home),)), Host(), files.run)
    assert (plan.read_only, plan.denied) == ((files.unpacked,), (files.records,))


def test_from_source_only_the_records_are_hidden(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert ExecServerRuntimePaths.unpacked_folder() is None
    assert files.added(ROOT_READ_ONLY, write(files.run)) == [(HIDDEN_DIRECTORY, files.records)]
