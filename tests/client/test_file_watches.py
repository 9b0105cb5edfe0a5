"""Watched folders, with the client and a real server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gevent
import pytest

from execserver.client import (
    ExecServerClient,
    InvalidRequestError,
    NotFoundError,
    SessionState,
    UnsupportedByServer,
    WaitTimeout,
)
from execserver.client.file_watches import FileWatch
from execserver.protocol.environment import Extensions
from execserver.protocol.file_watches import FsChange, FsChangesNotification
from execserver.protocol.own_methods import FS_UNWATCH
from tests.client.conftest import QUICK
from tests.client.cutting_proxy import CuttingProxy
from tests.client.test_file_changes import only
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

Seen = tuple[str, str] | tuple[str, str, str]
SOON = 20.0


class Follower:
    """Takes what a watch tells until something has been told."""

    def __init__(self, watch: FileWatch, root: Path) -> None:
        self.watch = watch
        self.root = os.fsencode(root)
        self.seen: list[Seen] = []
        self.batches: list[FsChangesNotification] = []

    def until(self, done: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Return all changes so far, once they are enough."""
        with gevent.Timeout(SOON, AssertionError(f"not enough: {self.seen}")):
            while not done(self.seen):
                batch = self.watch.next_batch()
                assert batch is not None, self.seen
                self.batches.append(batch)
                self.seen += [self._short(change) for change in batch.changes]
        return self.seen

    def until_told(self, *wanted: Seen) -> list[Seen]:
        """Return all changes so far, once these are among them."""
        return self.until(lambda seen: set(wanted) <= set(seen))

    def _short(self, change: FsChange) -> Seen:
        path = self._below(change.path.native()) + ("/" if change.is_directory else "")
        if change.old_path is None:
            return change.kind.value, path
        return change.kind.value, self._below(change.old_path.native()), path

    def _below(self, path: bytes) -> str:
        return os.fsdecode(path[len(self.root) + 1 :])


@pytest.fixture
def watched(remote: ExecServerClient, folder: Path) -> Iterator[Follower]:
    """A watch of a folder that has `a/b` in it."""
    (folder / "a" / "b").mkdir(parents=True)
    with remote.files.watch(folder, coalesce=0.01) as watch:
        assert (watch.folders, watch.errors) == (3, ())
        yield Follower(watch, folder)


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not watched."""
    return tmp_path_factory.mktemp("elsewhere")


def test_each_kind_of_change_is_told_in_order(watched: Follower, folder: Path) -> None:
    file = folder / "a" / "b" / "file"
    file.write_bytes(b"1")
    watched.until_told(("created", "a/b/file"))
    file.write_bytes(b"22")
    watched.until_told(("modified", "a/b/file"))
    (folder / "a").chmod(0o700)
    watched.until_told(("attributes", "a/"))
    file.rename(folder / "moved")
    watched.until_told(("renamed", "a/b/file", "moved"))
    (folder / "moved").unlink()
    (folder / "a" / "b").rmdir()
    seen = watched.until_told(("removed", "a/b/"))
    order = [kind for kind, *_ in seen]
    assert list(dict.fromkeys(order)) == [
        *("created", "modified", "attributes", "renamed", "removed"),
    ]
    assert ("removed", "moved") in seen
    assert [batch.seq for batch in watched.batches] == list(range(1, len(watched.batches) + 1))
    assert not any(batch.overflow or batch.ended or batch.errors for batch in watched.batches)


def test_what_is_in_a_new_folder_is_told_however_fast_it_came(watched: Follower, folder: Path) -> None:
    wanted: list[Seen] = []
    for number in range(20):
        deep = folder / f"new{number}" / "x" / "y"
        deep.mkdir(parents=True)
        (deep / "file").write_bytes(b"")
        (folder / f"new{number}" / "link").symlink_to("/etc")
        wanted += [("created", f"new{number}/x/y/file"), ("created", f"new{number}/link")]
        wanted += [
            ("created", f"new{number}/"),
            ("created", f"new{number}/x/"),
            ("created", f"new{number}/x/y/"),
        ]
    watched.until_told(*wanted)
    (folder / "new7" / "x" / "y" / "later").write_bytes(b"")
    watched.until_told(("created", "new7/x/y/later"))


def test_a_folder_that_is_moved_is_watched_at_its_new_place(watched: Follower, folder: Path) -> None:
    (folder / "a").rename(folder / "c")
    (folder / "c" / "b" / "file").write_bytes(b"")
    seen = watched.until_told(("renamed", "a", "c/"), ("created", "c/b/file"))
    outside = folder.parent / f"{folder.name}-outside"
    (folder / "c").rename(outside)
    try:
        watched.until_told(("removed", "c/"))
        (outside / "b" / "unseen").write_bytes(b"")
        outside.rename(folder / "back")
        seen = watched.until_told(("created", "back/"), ("created", "back/b/unseen"))
        assert not any("unseen" in path and "back" not in path for _, *paths in seen for path in paths)
        (folder / "back" / "b" / "seen").write_bytes(b"")
        watched.until_told(("created", "back/b/seen"))
    finally:
        shutil.rmtree(outside, ignore_errors=True)


def test_no_symlink_is_followed(
    watched: Follower, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "link").symlink_to(elsewhere)
    watched.until_told(("created", "link"))
    (folder / "a").rename(folder / "was")
    (folder / "a").symlink_to(elsewhere)
    (elsewhere / "unseen").write_bytes(b"")
    (folder / "last").write_bytes(b"")
    seen = watched.until_told(("created", "last"), ("created", "a"))
    assert not any("unseen" in path for _, *paths in seen for path in paths)


def test_without_recursive_only_the_folder_itself_is_watched(remote: ExecServerClient, folder: Path) -> None:
    (folder / "a").mkdir()
    with remote.files.watch(folder, recursive=False, coalesce=0.01) as watch:
        assert watch.folders == 1
        follower = Follower(watch, folder)
        (folder / "a" / "unseen").write_bytes(b"")
        (folder / "new").mkdir()
        (folder / "new" / "unseen").write_bytes(b"")
        (folder / "last").write_bytes(b"")
        seen = follower.until_told(("created", "last"))
        assert not any("unseen" in path for _, *paths in seen for path in paths)
        assert ("created", "new/") in seen


def test_names_that_are_no_text_come_as_they_are(watched: Follower, folder: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe? \n%41")
    (folder / odd).write_bytes(b"")
    assert ("created", odd) in watched.until_told(("created", odd))


def test_a_root_is_removed_although_a_process_is_in_it(remote: ExecServerClient, folder: Path) -> None:
    root = folder / "root"
    root.mkdir()
    process = remote.start(["sleep", "100"], cwd=str(root))
    with remote.files.watch(root, coalesce=0.01) as watch:
        root.rmdir()
        assert [(batch.ended, batch.reason) for batch in watch] == [(True, "the folder was removed")]
    process.terminate()


def test_a_root_moves_with_the_folders_above(remote: ExecServerClient, folder: Path) -> None:
    root = folder / "a" / "b" / "root"
    root.mkdir(parents=True)
    with remote.files.watch(root, coalesce=0.01) as watch:
        (folder / "a" / "beside").mkdir()
        (folder / "a").rename(folder / "c")
        assert [(batch.ended, batch.reason) for batch in watch] == [(True, "the folder was moved")]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_the_end_of_the_root_ends_the_watch(remote: ExecServerClient, folder: Path, how: str) -> None:
    root = folder / "root"
    root.mkdir()
    (root / "file").write_bytes(b"")
    watch = remote.files.watch(root, coalesce=0.01)
    if how == "removed":
        shutil.rmtree(root)
    else:
        root.rename(folder / "other")
    batches = list(watch)
    assert batches[-1].ended
    assert batches[-1].reason == f"the folder was {how}"
    assert not any(batch.ended for batch in batches[:-1])
    watch.close()
    assert watch.next_batch() is None


def test_refusals_say_why(remote: ExecServerClient, folder: Path) -> None:
    (folder / "file").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="no directory; watch the one that it is in"):
        remote.files.watch(folder / "file")
    with pytest.raises(NotFoundError):
        remote.files.watch(folder / "missing")
    watches = [remote.files.watch(folder) for _ in range(16)]
    with pytest.raises(InvalidRequestError, match="at most 16 watches may be open in a session"):
        remote.files.watch(folder)
    watches.pop().close()
    watches.append(remote.files.watch(folder))
    for watch in watches:
        watch.close()


def test_a_watch_that_has_ended_makes_room(remote: ExecServerClient, folder: Path) -> None:
    (folder / "root").mkdir()
    watches = [remote.files.watch(folder / "root", coalesce=0.0) for _ in range(16)]
    (folder / "root").rmdir()
    for watch in watches:
        assert [batch.ended for batch in watch][-1]
    with remote.files.watch(folder):
        pass


def test_a_server_without_it_is_not_asked(remote: ExecServerClient, folder: Path) -> None:
    info = remote._session.environment_info
    assert info is not None
    remote._session._rules.environment_info = type(info)(shell=info.shell, execserver=Extensions())
    try:
        with pytest.raises(UnsupportedByServer):
            remote.files.watch(folder)
    finally:
        remote._session._rules.environment_info = info


def test_closing_ends_it_on_both_sides(remote: ExecServerClient, folder: Path) -> None:
    watch = remote.files.watch(folder, coalesce=0.01)
    waiting = gevent.spawn(lambda: list(watch))
    gevent.sleep(0)
    watch.close()
    watch.close()
    assert waiting.get(timeout=SOON) == []
    with pytest.raises(InvalidRequestError, match="unknown watch"):
        remote.call("fs/watchResume", {"watchId": watch.watch_id, "afterSeq": 0})
    remote.call(FS_UNWATCH.name, {"watchId": watch.watch_id})


def test_nothing_changed_in_time(watched: Follower) -> None:
    with pytest.raises(WaitTimeout, match=r"nothing has changed for 0\.001 s"):
        watched.watch.next_batch(timeout=0.001)


def went_on(client: ExecServerClient, before: int) -> bool:
    """Return whether a session was resumed more than so many times."""
    return client.resumptions > before and client.state is SessionState.OPEN


def test_a_watch_goes_on_over_lost_connections(server: ServerProcess, folder: Path) -> None:
    with (
        CuttingProxy(server.url) as proxy,
        ExecServerClient.connect(proxy.url, QUICK) as client,
        client.files.watch(folder, coalesce=0.0) as watch,
    ):
        follower = Follower(watch, folder)
        for number in range(5):
            proxy.swallow = True
            (folder / f"before{number}").write_bytes(b"")
            gevent.sleep(0.02 * number)  # sometimes the batch is on its way, sometimes not yet made
            proxy.cut()
            (folder / f"meanwhile{number}").write_bytes(b"")
            follower.until_told(("created", f"before{number}"), ("created", f"meanwhile{number}"))
            wait_until(partial(went_on, client, number), pause=gevent.sleep)
        assert not any(batch.overflow for batch in follower.batches)


def test_batches_that_are_not_kept_any_more_are_an_overflow(remote: ExecServerClient, folder: Path) -> None:
    with remote.files.watch(folder, coalesce=0.0) as watch:
        follower = Follower(watch, folder)
        for number in range(70):
            (folder / f"{number}").write_bytes(b"")
            follower.until_told(("created", f"{number}"))
        remote.call("fs/watchResume", {"watchId": watch.watch_id, "afterSeq": 0})
        batch = watch.next_batch(timeout=SOON)
        assert batch is not None
        assert batch.overflow
        assert batch.reason == "the client was away, and not all batches were kept"
        with pytest.raises(InvalidRequestError, match="batches were sent"):
            remote.call("fs/watchResume", {"watchId": watch.watch_id, "afterSeq": 10**6})


def test_a_sandbox_hides_what_it_denies(remote: ExecServerClient, folder: Path) -> None:
    for name in ("hidden", "kept", "seen"):
        (folder / name).mkdir()
    with remote.files.watch(folder, coalesce=0.01, sandbox=only(folder)) as watch:
        follower = Follower(watch, folder)
        for name in ("hidden", "kept", "seen"):
            (folder / name / "file").write_bytes(b"")
        (folder / "hidden" / "more").mkdir()
        os.utime(folder / "hidden")
        (folder / "hidden" / "file").rename(folder / "seen" / "from hidden")
        (folder / "seen" / "file").rename(folder / "hidden" / "to hidden")
        (folder / "seen" / "last").write_bytes(b"")
        seen = follower.until_told(("created", "seen/last"), ("removed", "seen/file"))
        assert {("created", "seen/from hidden"), ("created", "kept/file")} <= set(seen)
        assert not any(path.startswith("hidden") for _, *paths in seen for path in paths)
        assert all("hidden" not in error.path.uri for batch in follower.batches for error in batch.errors)
    with pytest.raises((InvalidRequestError, NotFoundError)):
        remote.files.watch(folder / "hidden", sandbox=only(folder))
