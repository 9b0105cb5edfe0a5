"""Uploads and downloads over connections that are lost, and beside output that nobody reads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from execserver.client.errors import ResumeFailed, kept
from execserver.client.operations.content import Handles
from execserver.client.options import ExecServerClientConnectOptions as Options
from execserver.client.rules.event_log import Output
from execserver.protocol.environment import Extensions
from execserver.protocol.files import FsGetMetadataResponse, FsOpenResponse
from execserver.protocol.methods import FS_GET_METADATA, FS_OPEN, FS_READ_BLOCK
from execserver_client._blocks import Blocks
from execserver_client.box import Box
from execserver_client.errors import ExecServerError, TransferFailed, TransportClosed
from tests.sdk.boxes import QUICK, box_of
from tests.sdk.cutting import cutting
from tests.sdk.support import run_async
from tests.sdk.test_upload import assert_copied, tree
from tests.support.cutting_proxy import CuttingProxy

__all__ = ["tree"]  # a fixture
DATA = os.urandom(1000) * 20_000
EVERY = 5_000_000
KNOWN = FsGetMetadataResponse(
    is_directory=False, is_file=True, is_symlink=False, size=10, created_at_ms=0, modified_at_ms=0
)


def played(url: str, use: Callable[[Box, CuttingProxy], Awaitable[None]], options: Options = QUICK) -> int:
    """Use a box by way of a proxy and return its connections; nothing may be left, also no thread."""

    async def main() -> int:
        with cutting(url) as proxy:
            async with await box_of(proxy.url, options).open() as box:
                await use(box, proxy)
            await asyncio.get_running_loop().shutdown_default_executor()
            return proxy.connections

    return run_async(main())


def over_cuts(url: str, use: Callable[[Box, Callable[[int], None]], Awaitable[None]]) -> int:
    """Use a box whose connection is cut each time that so many bytes are through; return the connections."""

    async def main(box: Box, proxy: CuttingProxy) -> None:
        await use(box, cutter(proxy))

    return played(url, main)


def cutter(proxy: CuttingProxy) -> Callable[[int], None]:
    cuts = 0

    def progress(come: int) -> None:
        nonlocal cuts
        if come // EVERY > cuts:
            cuts = come // EVERY
            proxy.cut()

    return progress


def test_a_large_file_comes_whole_over_lost_connections(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)

    async def use(box: Box, progress: Callable[[int], None]) -> None:
        await box.files.download(tmp_path / "source", tmp_path / "target", progress=progress)
        assert (tmp_path / "target").read_bytes() == DATA

    assert over_cuts(url, use) >= 4


def test_a_large_file_gets_there_whole_over_lost_connections(url: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(4):
        (tmp_path / "tree" / str(number)).write_bytes(DATA[: 6_000_000 + number])

    async def use(box: Box, progress: Callable[[int], None]) -> None:
        await box.files.upload(tmp_path / "tree", tmp_path / "there", progress=progress)
        for number in range(4):
            assert (tmp_path / "there" / str(number)).read_bytes() == DATA[: 6_000_000 + number]
        assert len(os.listdir(tmp_path / "there")) == 4

    assert over_cuts(url, use) >= 4


def test_a_tree_comes_whole_over_lost_connections(url: str, tree: Path, tmp_path: Path) -> None:
    (tree / "z").mkdir()
    for number in range(4):
        (tree / "z" / str(number)).write_bytes(DATA[:6_000_000])

    async def use(box: Box, progress: Callable[[int], None]) -> None:
        await box.files.download(tree, tmp_path / "here", progress=progress)
        for number in range(4):
            assert (tmp_path / "here" / "z" / str(number)).read_bytes() == DATA[:6_000_000]
            (tmp_path / "here" / "z" / str(number)).unlink()
        (tmp_path / "here" / "z").rmdir()
        assert_copied(tmp_path / "here")

    assert over_cuts(url, use) >= 4


def test_a_file_that_is_another_one_after_a_loss_is_not_taken(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)

    async def use(box: Box, progress: Callable[[int], None]) -> None:
        def replace(come: int) -> None:
            (tmp_path / "new").write_bytes(DATA[::-1])
            os.utime(tmp_path / "new", (1, 1))
            (tmp_path / "new").rename(tmp_path / "source")
            progress(come)

        with pytest.raises(TransferFailed, match="changed"):
            await box.files.download(tmp_path / "source", tmp_path / "target", progress=replace)
        assert sorted(os.listdir(tmp_path)) == ["source"]

    assert over_cuts(url, use) >= 2


def test_a_session_that_ends_ends_its_transfers(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    quick = Options(resume_interval=0.01, resume_window=0.2, close_timeout=1.0)

    async def use(box: Box, proxy: CuttingProxy) -> None:
        def lose(come: int) -> None:
            proxy.refuse(True)
            proxy.cut()

        with pytest.raises(TransportClosed):
            await box.files.download(tmp_path / "source", tmp_path / "target", progress=lose)
        with pytest.raises(ExecServerError):
            await box.files.upload(tmp_path / "source", tmp_path / "target")
        assert os.listdir(tmp_path) == ["source"]

    played(url, use, quick)


@pytest.mark.parametrize("way", ["file", "tree", "upload"])
def test_a_transfer_goes_on_beside_output_that_its_caller_has_yet_to_read(
    url: str, tmp_path: Path, way: str
) -> None:
    """The caller is the reader of the output, which may not hold back what he waits for."""
    (tmp_path / "tree").mkdir()
    source, target = tmp_path / "tree" / "file", tmp_path / "target"
    source.write_bytes(DATA)
    small = QUICK.replace(max_unread_bytes=65_536, max_unread_bytes_while_waiting=2**20)
    script = "echo; while [ ! -e go ]; do sleep 0.01; done; head -c 500000 /dev/zero"

    async def use(box: Box, proxy: CuttingProxy) -> None:
        def flood(come: int) -> None:
            (tmp_path / "go").touch()

        process = await box.start(["sh", "-c", script], cwd=tmp_path)
        assert await process.next_event(20)
        if way == "upload":
            await box.files.upload(source, target, progress=flood)
        else:
            await box.files.download(source if way == "file" else tmp_path / "tree", target, progress=flood)
        rest = [event.data async for event in process if isinstance(event, Output)]
        assert sum(map(len, rest)) == 500_000

    async def limited(box: Box, proxy: CuttingProxy) -> None:
        async with asyncio.timeout(20):
            await use(box, proxy)

    played(url, limited, small)


def test_a_connection_that_ends_each_time_is_given_up() -> None:
    class Ending:
        """Opens files, and loses the connection when one is read."""

        extensions = Extensions()

        def __init__(self, error: TransportClosed, *, opens: bool) -> None:
            self.reads = 0
            self.opened = 0
            self._error = error
            self._opens = opens

        async def call(self, method: Any, params: Any, **options: Any) -> Any:
            if method is FS_GET_METADATA:
                return KNOWN
            if method is FS_OPEN and self._opens:
                self.opened += 1
                return FsOpenResponse(handle_id=params.handle_id)
            self.reads += method is FS_READ_BLOCK
            raise kept(self._error)

    def reads(error: TransportClosed, *, opens: bool) -> tuple[int, int]:
        host: Any = Ending(error, opens=opens)

        async def play() -> None:
            blocks = Blocks(host, Handles(), "/file", KNOWN, None)
            with pytest.raises(type(error)):
                await blocks.read(0, 10)
            await blocks.aclose()

        asyncio.run(play())
        return host.opened, host.reads

    assert reads(TransportClosed("lost"), opens=True) == (20, 20)
    assert reads(TransportClosed("lost"), opens=False) == (0, 0)
    assert reads(ResumeFailed("lost for good"), opens=True) == (1, 1)
