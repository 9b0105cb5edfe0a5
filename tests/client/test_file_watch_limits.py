"""Watched folders at their limits: of the kernel, of permissions, of the client's patience."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest

from execserver.client import ExecServerClient, InvalidParamsError, InvalidRequestError, TransportClosed
from execserver.client.file_watches import FileWatch
from execserver.client.greenlets.router import Watch
from execserver.client.rules import batch_log
from execserver.protocol.file_watches import FsChange, FsChangeKind, FsChangesNotification
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from tests.client.conftest import QUICK
from tests.client.test_file_watches import SOON, Follower
from tests.support.server_process import OURS, Flavour, ServerProcess
from tests.support.waiting import wait_until

ERROR = FsWalkError(path=PathUri.from_native(b"/d"), message="x")
FEW = ("unshare", "-Ur", "sh", "-c")
SET_FEW = "echo 40 >/proc/sys/user/max_inotify_watches && echo 3 >/proc/sys/user/max_inotify_instances"
QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def with_few(tmp_path: Path) -> Iterator[ExecServerClient]:
    """A client of a server whose user may have few watches and instances."""
    try:
        subprocess.run([*FEW, SET_FEW], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no user namespace with limits of its own: {error}")
    server = ServerProcess(Flavour("few", (*FEW, f'{SET_FEW} && exec "$@"', "sh", *OURS.argv), 0))
    with ExecServerClient.connect(server.url, QUICK) as client:
        yield client
    server.stop()
    server.release()


def test_the_kernels_limits_are_named_and_growth_beyond_is_an_overflow(
    with_few: ExecServerClient, folder: Path
) -> None:
    root = folder / "root"
    root.mkdir()
    watches = [with_few.files.watch(root, recursive=False) for _ in range(3)]
    with pytest.raises(InvalidRequestError, match=r"no inotify instance left \(user.max_inotify_inst"):
        with_few.files.watch(root)
    for watch in watches:
        watch.close()
    with with_few.files.watch(root, coalesce=0.01) as watch:
        follower = Follower(watch, root)
        for number in range(50):
            (root / f"{number}").mkdir()
        follower.until(lambda _: any(batch.overflow for batch in follower.batches))
        errors = {error.message for batch in follower.batches for error in batch.errors}
        assert any("user.max_inotify_watches is 40" in message for message in errors)
        (root / "file").write_bytes(b"")
        follower.until_told(("created", "file"))
        with pytest.raises(InvalidRequestError, match="watch fewer folders"):
            with_few.files.watch(root)
    assert with_few.files.watch(root, recursive=False).folders == 1  # all was given back


def test_after_the_kernels_queue_ran_over_everything_is_watched_again(
    remote: ExecServerClient, server: ServerProcess, folder: Path
) -> None:
    events = int(QUEUE.read_text())
    if events > 20_000:
        pytest.skip(f"the kernel's queue of {events} events takes long to fill")
    (folder / "a").write_bytes(b"")
    (folder / "old").mkdir()
    with remote.files.watch(folder, coalesce=0.01) as watch:
        follower = Follower(watch, folder)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for _ in range(events // 4 + 1):
                (folder / "a").rename(folder / "b")
                (folder / "b").rename(folder / "a")
            (folder / "deep" / "er").mkdir(parents=True)
            (folder / "old").rename(folder / "new")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        follower.until(lambda _: any(batch.overflow for batch in follower.batches))
        reasons = [batch.reason for batch in follower.batches if batch.overflow]
        assert reasons[-1] == "the kernel's queue was full (fs.inotify.max_queued_events)"
        for place in ("deep/er", "new"):
            (folder / place / "file").write_bytes(b"")
        follower.until_told(("created", "deep/er/file"), ("created", "new/file"))


def test_what_is_out_of_range_is_refused(remote: ExecServerClient, folder: Path) -> None:
    for wrong in ({"coalesceMs": 10_001}, {"coalesceMs": -1}, {"watchId": ""}, {"watchId": "x" * 65}):
        with pytest.raises(InvalidParamsError):
            remote.call("fs/watch", {"watchId": "w", "path": str(folder), **wrong})
    with pytest.raises(InvalidRequestError, match="unknown watch w"):
        remote.call("fs/watchResume", {"watchId": "w", "afterSeq": 0})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_folders_that_may_not_be_read_are_told_and_others_watched(
    remote: ExecServerClient, folder: Path
) -> None:
    for name in ("closed", "open"):
        (folder / name).mkdir()
    (folder / "closed").chmod(0)
    try:
        with remote.files.watch(folder, coalesce=0.01) as watch:
            assert [Path(os.fsdecode(error.path.native())).name for error in watch.errors] == ["closed"]
            assert watch.folders == 2
            follower = Follower(watch, folder)
            (folder / "open" / "file").write_bytes(b"")
            follower.until_told(("created", "open/file"))
    finally:
        (folder / "closed").chmod(0o700)


def batch_of(seq: int, changes: int, *, overflow: bool = False, ended: bool = False) -> FsChangesNotification:
    change = FsChange(path=PathUri.from_native(b"/f"), kind=FsChangeKind.MODIFIED, is_directory=False)
    return FsChangesNotification(
        watch_id="w", seq=seq, changes=(change,) * changes, errors=(), overflow=overflow, ended=ended
    )


class Home:
    """A session without watches."""

    def __init__(self) -> None:
        self.watches: dict[str, Watch] = {}


def taken(watch: FileWatch) -> list[tuple[int, int, bool]]:
    """Return number, changes and overflow of all batches that can be taken now."""
    found = []
    while watch._log.pending:
        batch = watch.next_batch()
        assert batch is not None
        found.append((batch.seq, len(batch.changes), batch.overflow))
    return found


def test_what_nobody_takes_becomes_an_overflow(remote: ExecServerClient) -> None:
    watch = FileWatch(remote._session, Home(), "w")
    for seq in range(1, 60):
        watch.deliver(batch_of(seq, 1000))
    assert taken(watch) == [(51, 0, True), *[(seq, 1000, False) for seq in range(52, 60)]]
    watch.deliver(batch_of(60, 10))
    assert taken(watch) == [(60, 10, False)]


@pytest.mark.parametrize(
    "members", [{}, {"reason": "x" * 2048}, {"errors": (ERROR,) * 3}], ids=["nothing", "a reason", "folders"]
)
def test_what_tells_no_changes_is_not_kept_without_measure_either(
    members: dict[str, Any], remote: ExecServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_log, "_MOST_CHANGES", 50)
    watch = FileWatch(remote._session, Home(), "w")
    for seq in range(1, 201):
        watch.deliver(msgspec.structs.replace(batch_of(seq, 0), **members))
    found = taken(watch)
    assert len(found) <= 50
    assert (found[0][2], found[-1][0]) == (True, 200)


def test_batches_count_once_and_in_order_unless_they_tell_an_overflow(remote: ExecServerClient) -> None:
    watch = FileWatch(remote._session, Home(), "w")
    for seq in (1, 1, 3, 2, 3, 2):
        watch.deliver(batch_of(seq, 1))
    assert taken(watch) == [(1, 1, False), (2, 1, False), (3, 1, False)]
    for batch in (batch_of(9, 0, overflow=True), batch_of(8, 1), batch_of(10, 1, ended=True)):
        watch.deliver(batch)
    assert taken(watch) == [(9, 0, True), (10, 1, False)]
    assert watch.next_batch() is None


def test_the_end_of_the_session_is_raised_once_all_is_taken(server: ServerProcess, folder: Path) -> None:
    with ExecServerClient.connect(server.url, QUICK) as client:
        watch = client.files.watch(folder, coalesce=0.0)
        (folder / "file").write_bytes(b"")
        with gevent.Timeout(SOON):
            wait_until(lambda: bool(watch._log.pending), SOON, pause=gevent.sleep)
    assert watch.next_batch() is not None
    with pytest.raises(TransportClosed):
        list(watch)
