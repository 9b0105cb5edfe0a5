"""The kernel's reports of what happens in a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.files.inotify import IN_CREATE, IN_DELETE_SELF, IN_IGNORED, IN_ONLYDIR, Event, Inotify


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    """One instance."""
    made = Inotify()
    yield made
    made.close()


def test_what_appears_is_reported_with_its_name(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.watch(os.fsencode(tmp_path), IN_CREATE)
    assert inotify.read() == []
    (tmp_path / "é").touch()
    (tmp_path / "x").touch()
    assert inotify.read() == [Event(watch, IN_CREATE, "é".encode()), Event(watch, IN_CREATE, b"x")]


def test_one_directory_has_one_watch_under_all_its_names(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    first = inotify.watch(os.fsencode(tmp_path), IN_CREATE)
    assert inotify.watch(os.fsencode(tmp_path / "link"), IN_CREATE) == first


def test_the_end_of_a_watched_directory_is_reported_and_ends_the_watch(
    inotify: Inotify, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    watch = inotify.watch(os.fsencode(tmp_path / "d"), IN_DELETE_SELF)
    (tmp_path / "d").rmdir()
    assert [(event.watch, event.mask) for event in inotify.read()] == [
        (watch, IN_DELETE_SELF),
        (watch, IN_IGNORED),
    ]
    inotify.unwatch(watch)


def test_a_file_is_no_directory(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError) as refused:
        inotify.watch(os.fsencode(tmp_path / "f"), IN_CREATE | IN_ONLYDIR)
    assert refused.value.errno == errno.ENOTDIR
