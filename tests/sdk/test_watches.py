"""Watched directories with the asyncio client and a real server."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.client.errors import (
    InvalidRequestError,
    NotFoundError,
    TransportClosed,
    UnsupportedByServer,
    WaitTimeout,
)
from execserver.protocol.environment import Extensions
from execserver.protocol.file_watches import FsChange, FsChangeKind, FsChangesNotification
from execserver.protocol.paths import PathUri
from execserver_client.watches import FileWatch
from tests.sdk.cutting import cutting
from tests.sdk.parts import Client, connect
from tests.sdk.settling import until, until_equal
from tests.sdk.support import run_async
from tests.support.server_process import ServerProcess

Seen = tuple[str, str]


class Follower:
    """Takes what a watch tells until something has been told."""

    def __init__(self, watch: FileWatch, root: Path) -> None:
        self.watch = watch
        self.root = os.fsencode(root)
        self.seen: list[Seen] = []
        self.batches: list[FsChangesNotification] = []

    async def until_told(self, *wanted: Seen) -> None:
        while not set(wanted) <= set(self.seen):
            batch = await self.watch.next_batch(20)
            assert batch is not None, self.seen
            self.batches.append(batch)
            self.seen += [(one.kind.value, self._below(one)) for one in batch.changes]

    def _below(self, change: FsChange) -> str:
        return os.fsdecode(change.path.native()[len(self.root) + 1 :])


async def is_unknown(client: Client, watch_id: str) -> bool:
    try:
        await client.call("fs/watchResume", {"watchId": watch_id, "afterSeq": 0})
    except InvalidRequestError as error:
        return "unknown watch" in str(error)
    return False


def test_changes_come_in_batches_until_the_watch_is_left(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "a").mkdir()
        async with connect(server.url) as client:
            async with client.watch(tmp_path, coalesce=0.01) as watch:
                assert (watch.folders, watch.errors) == (2, ())
                follower = Follower(watch, tmp_path)
                (tmp_path / "a" / "file").write_bytes(b"1")
                await follower.until_told(("created", "a/file"))
                (tmp_path / "a" / "file").unlink()
                await follower.until_told(("removed", "a/file"))
                assert [batch.seq for batch in follower.batches] == list(range(1, len(follower.batches) + 1))
                with pytest.raises(WaitTimeout, match=r"nothing has changed for 0\.001 s"):
                    await watch.next_batch(0.001)
            assert await watch.next_batch() is None
            assert await is_unknown(client, watch._following.watch_id)
            await watch.aclose()

    run_async(play())


def test_a_reader_is_woken_by_closing(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            watch = await client.watch(tmp_path)

            async def all_batches() -> list[FsChangesNotification]:
                return [batch async for batch in watch]

            reading = asyncio.create_task(all_batches())
            await asyncio.sleep(0)
            await watch.aclose()
            assert await reading == []

    run_async(play())


def test_the_end_of_the_root_ends_the_watch(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        root = tmp_path / "root"
        root.mkdir()
        async with connect(server.url) as client, client.watch(root, coalesce=0.01) as watch:
            root.rmdir()
            ends = [(batch.ended, batch.reason) async for batch in watch]
            assert ends[-1] == (True, "the folder was removed")

    run_async(play())


def test_refusals_say_why(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            with pytest.raises(NotFoundError):
                await client.watch(tmp_path / "missing")
            monkeypatch.setattr(type(client.session), "extensions", Extensions())
            with pytest.raises(UnsupportedByServer):
                await client.watch(tmp_path)

    run_async(play())


def test_a_watch_goes_on_over_lost_connections(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        with cutting(server.url) as proxy:
            async with connect(proxy.url) as client, client.watch(tmp_path, coalesce=0.0) as watch:
                follower = Follower(watch, tmp_path)
                for number in range(4):
                    (tmp_path / f"before{number}").write_bytes(b"")
                    proxy.cut()
                    (tmp_path / f"meanwhile{number}").write_bytes(b"")
                    await follower.until_told(
                        ("created", f"before{number}"), ("created", f"meanwhile{number}")
                    )
                assert not any(batch.overflow for batch in follower.batches)

    run_async(play())


def test_a_cancelled_opening_leaves_no_watch(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            for _ in range(10):
                opening = asyncio.ensure_future(client.watch(tmp_path))
                await asyncio.sleep(0)
                opening.cancel()
                with suppress(asyncio.CancelledError):
                    await opening

            async def opened() -> bool:
                try:
                    await client.watch(tmp_path)
                except InvalidRequestError:
                    return False
                return True

            for _ in range(16):  # as many as there may be
                await until_equal(opened, True)

    run_async(play())


def test_the_end_of_the_session_is_raised_once_all_is_taken(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        async with connect(server.url) as client:
            watch = await client.watch(tmp_path, coalesce=0.0)
            (tmp_path / "file").write_bytes(b"")
            await until(lambda: watch._following.log.pending)
        assert await watch.next_batch() is not None
        with pytest.raises(TransportClosed):
            _ = [batch async for batch in watch]
        await watch.aclose()

    run_async(play())


def test_what_nobody_takes_becomes_an_overflow(server: ServerProcess, tmp_path: Path) -> None:
    change = FsChange(path=PathUri.from_native(b"/f"), kind=FsChangeKind.MODIFIED, is_directory=False)

    def batch_of(seq: int) -> FsChangesNotification:
        return FsChangesNotification(
            watch_id="w", seq=seq, changes=(change,) * 1000, errors=(), overflow=False, ended=False
        )

    async def play() -> None:
        async with connect(server.url) as client, client.watch(tmp_path) as watch:
            for seq in range(1, 60):
                watch._following.deliver(batch_of(seq))
            first = await watch.next_batch()
            assert first is not None
            assert (first.seq, first.overflow, first.changes) == (51, True, ())
            second = await watch.next_batch()
            assert second is not None
            assert (second.seq, second.overflow) == (52, False)

    run_async(play())
