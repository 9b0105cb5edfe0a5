"""Watches of missing paths: one kernel instance for all connections, and nothing left of it afterwards."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.files import inotify
from execserver.protocol.files import FsWatchMissingParams
from execserver.protocol.paths import PathUri
from execserver.services.file_watches import missing as missing_watch
from execserver.services.file_watches.missing import ConnectionWatch, MissingWatches
from execserver.services.files.filesystem import FileService
from execserver.settings import Settings
from tests.services.fakes import FakeSink
from tests.support.greenlets import turns
from tests.support.waiting import wait_until


@pytest.fixture
def files() -> Iterator[FileService]:
    """The file operations of a server."""
    made = FileService(Settings())
    yield made
    made.close()


class Client:
    """One connection with its watch."""

    def __init__(self, watches: MissingWatches, files: FileService) -> None:
        self.sink = FakeSink()
        self.watch = ConnectionWatch(watches, files, self.sink)

    def ask(self, watch_id: int, *missing: Path, present: Path | None = None, arm: bool = True) -> bool:
        """Send a request and return its answer."""
        paths = tuple(PathUri.parse(str(path)) for path in missing)
        also = None if present is None else PathUri.parse(str(present))
        made = self.watch.replace(FsWatchMissingParams(watch_id=watch_id, missing=paths, present=also))
        if made is not None and arm:
            made.arm()
        return made is not None

    @property
    def told(self) -> list[int]:
        """The ids of the notifications that came."""
        return [json.loads(message)["params"]["watchId"] for message in self.sink.messages]

    def hears(self, *ids: int) -> None:
        """Wait for notifications."""
        wait_until(lambda: self.told == list(ids), pause=gevent.sleep)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without a symlink in its path."""
    found = tmp_path.resolve()
    for parent in found.parents:
        if not os.access(parent, os.R_OK):  # the kernel lets nobody watch what it does not let them list
            pytest.skip(f"this user may not list {parent}")
    return found


@pytest.fixture
def watches(files: FileService) -> MissingWatches:
    """The watches of a server."""
    return MissingWatches(files)


def open_instances() -> int:
    """Return how many inotify instances this process has."""
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and "inotify" in os.readlink(link) for link in links)


def test_connections_share_one_instance_and_nothing_is_left(
    watches: MissingWatches, files: FileService, folder: Path
) -> None:
    one, two = Client(watches, files), Client(watches, files)
    assert one.ask(1, folder / "a")
    assert two.ask(1, folder / "b")
    assert open_instances() == 1
    (folder / "a").touch()
    one.hears(1)
    (folder / "b").touch()
    two.hears(1)
    assert one.told == [1]
    assert open_instances() == 0
    assert one.ask(2, folder / "c")
    one.watch.close()
    one.watch.close()
    assert open_instances() == 0


def test_a_watch_that_fires_before_its_answer_waits_for_it(
    watches: MissingWatches, files: FileService, folder: Path
) -> None:
    client = Client(watches, files)
    made = client.watch.replace(FsWatchMissingParams(watch_id=1, missing=(PathUri.parse(f"{folder}/a"),)))
    assert made is not None
    (folder / "a").touch()
    wait_until(lambda: not open_instances(), pause=gevent.sleep)
    assert client.told == []
    made.arm()
    assert client.told == [1]


def test_what_happens_beside_a_path_tells_nobody(
    watches: MissingWatches, files: FileService, folder: Path
) -> None:
    (folder / "there").mkdir()
    client = Client(watches, files)
    assert client.ask(1, folder / "a", present=folder / "there")
    for number in range(300):
        (folder / f"beside{number}").touch()
        (folder / "there" / f"{number}").touch()
    turns()
    (folder / "a").touch()
    client.hears(1)


@pytest.mark.parametrize("change", ["chmod", "rename", "remove"])
def test_a_change_of_what_is_present_is_told(
    change: str, watches: MissingWatches, files: FileService, folder: Path
) -> None:
    there = folder / "there"
    there.mkdir()
    client = Client(watches, files)
    assert client.ask(1, folder / "a", present=there)
    if change == "chmod":
        there.chmod(0o700)
    elif change == "rename":
        there.rename(folder / "elsewhere")
    else:
        there.rmdir()
    client.hears(1)


def test_a_user_without_instances_or_watches_hears_that_nothing_is_watched(
    watches: MissingWatches,
    files: FileService,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    client = Client(watches, files)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(inotify.Inotify, "watch", refused)
        assert not client.ask(1, folder / "a")
        patch.setattr(missing_watch, "Inotify", refused)
        assert not client.ask(2, folder / "a")
    assert [record.message for record in caplog.records] == [
        "missing paths are not watched: No space left on device"
    ]
    assert open_instances() == 0
    assert client.ask(3, folder / "a")
    client.watch.close()


def test_what_other_machines_can_change_is_not_watched(
    watches: MissingWatches, files: FileService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "is_local", lambda path: False)
    assert not Client(watches, files).ask(1, folder / "a")


def test_a_change_of_the_mounts_is_told(
    watches: MissingWatches, files: FileService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(watches, files)
    assert client.ask(1, folder / "a")
    monkeypatch.setattr(files, "mount_generation", lambda: -1)
    (folder / "beside").touch()  # wakes it as the kernel does for the mount table
    client.hears(1)


def test_dropped_events_are_told(watches: MissingWatches, files: FileService, folder: Path) -> None:
    client = Client(watches, files)
    assert client.ask(1, folder / "a")
    kernel_limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    # Two names in turn: the kernel merges an event with the same one before it.
    for number in range(kernel_limit // 2 + 1):
        (folder / f"b{number % 2}").touch()
        (folder / f"b{number % 2}").unlink()
    client.hears(1)
