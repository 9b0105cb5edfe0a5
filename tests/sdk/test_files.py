"""The files of a box from asyncio, with a real server."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from execserver.client.errors import (
    FileTooLarge,
    InvalidPath,
    InvalidRequestError,
    NotFoundError,
    RequestFailed,
    TransferFailed,
    UnsupportedByServer,
)
from execserver.protocol.batches import FsListEntry, FsNodeKind, FsWriteEntry
from execserver.protocol.files import FsWalkEntry, FsWalkError
from execserver.protocol.process_methods import ENVIRONMENT_SANDBOX
from execserver.protocol.session import NoParams
from execserver.protocol.trees import FsHashEntry, FsSearchMatch
from execserver_client._remote_file import RemoteFile
from execserver_client.files import Files
from execserver_client.sandbox import Sandbox
from tests.sdk.files_scene import Watched, on

ODD = b"\xff\xfe"


def test_content_goes_there_and_back(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        path = os.fsencode(tmp_path) + b"/" + ODD
        await files.write(path, b"\0\xff")
        assert await files.read(path) == b"\0\xff"
        assert await files.read(os.fsdecode(path)) == b"\0\xff"
        await files.write_text(tmp_path / "text", "Grüße\r\n")
        assert await files.read_text(tmp_path / "text") == "Grüße\r\n"
        assert await files.read_text(tmp_path / "text", encoding="latin-1") == "GrÃ¼Ã\x9fe\r\n"
        with pytest.raises(FileTooLarge):
            await files.read(tmp_path / "text", max_bytes=3)
        with pytest.raises(UnicodeError):
            await files.read_text(path)
        with pytest.raises(NotFoundError):
            await files.read(tmp_path / "none")
        with pytest.raises(InvalidPath):
            await files.read("text")

    on(url, scene)


def test_a_large_file_is_read_in_blocks_and_closed(url: str, tmp_path: Path) -> None:
    data = os.urandom(1000) * 9000
    (tmp_path / "large").write_bytes(data)

    async def scene(files: Files, host: Watched) -> None:
        assert await files.read(tmp_path / "large") == data
        assert host.made.count("fs/readBlock") == 10
        assert host.made[-1] == "fs/close"

    on(url, scene)


def test_a_file_is_replaced_only_if_nobody_has_changed_it(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        path = tmp_path / "file"
        await files.replace(path, b"one", mode=0o640, must_not_exist=True)
        seen = await files.version(path)
        assert seen.mode == 0o640
        await files.replace(path, b"three", if_unchanged=seen.version)
        with pytest.raises(InvalidRequestError):
            await files.replace(path, b"lost", if_unchanged=seen.version)
        with pytest.raises(InvalidRequestError):
            await files.replace(path, b"lost", must_not_exist=True)
        assert path.read_bytes() == b"three"

    on(url, scene)


def test_an_open_file_has_a_position_and_takes_offsets(url: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000

    async def scene(files: Files, host: Watched) -> None:
        async with files.open(tmp_path / "new", "replace") as file:
            await file.write(data)
            await file.write(b"!")
            await file.write(b"abc", offset=1)
            assert file.position == len(data) + 1
        there = b"\0abc" + data[4:] + b"!"
        assert (tmp_path / "new").read_bytes() == there
        async with files.open(tmp_path / "new") as file:
            assert await file.read(4) == b"\0abc"
            assert await file.read(2, offset=len(data) - 1) == b"\xff!"
            assert file.position == 4
            assert await file.read(2_000_000) == there[4:2_000_004]
            assert [len(block) async for block in file] == [len(there) - 2_000_004]
            assert await file.read() == b""
            assert await file.read(0) == b""
            with pytest.raises(ValueError):
                await file.read(-1)
        await file.aclose()
        assert host.made.count("fs/close") == 2
        held = await files.open(tmp_path / "new")
        assert isinstance(held, RemoteFile)
        await held.aclose()
        with pytest.raises(NotFoundError):
            await held.read(1)

    on(url, scene)


def test_opening_is_undone_when_nobody_waits_for_it_any_more(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    async def scene(files: Files, host: Watched) -> None:
        host.let_through.clear()
        opening = asyncio.create_task(_opened(files, tmp_path / "file"))
        while "fs/open" not in host.made:
            await asyncio.sleep(0)
        opening.cancel()
        while "fs/close" not in host.made:
            await asyncio.sleep(0)
        host.let_through.set()
        with pytest.raises(asyncio.CancelledError):
            await opening

    on(url, scene)


async def _opened(files: Files, path: Path) -> object:
    return await files.open(path)


def test_a_server_that_cannot_write_blocks_is_not_asked_to(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        host.environment_info = None
        with pytest.raises(UnsupportedByServer):
            await files.open(tmp_path / "new", "replace")
        assert "fs/open" not in host.made

    on(url, scene)


def test_names_are_made_changed_and_removed(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        await files.mkdir(tmp_path / "a" / "b")
        await files.mkdir(tmp_path / "a")
        with pytest.raises(NotFoundError):
            await files.mkdir(tmp_path / "x" / "y", parents=False)
        await files.touch(tmp_path / "a" / "file", modified_ns=1_000_000_007)
        await files.chmod(tmp_path / "a" / "file", 0o604)
        await files.copy(tmp_path / "a" / "file", tmp_path / "a" / "copy")
        await files.rename(tmp_path / "a" / "file", tmp_path / "a" / "b" / "file")
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        found = {each.file_name: each.is_directory for each in await files.list(tmp_path / "a")}
        assert found == {"b": True, "copy": False}
        status = os.stat(tmp_path / "a" / "b" / "file")
        assert (status.st_mtime_ns, status.st_mode & 0o7777) == (1_000_000_007, 0o604)
        there = await files.stat(tmp_path / "a" / "b" / "file")
        assert (there.is_file, there.size, there.modified_at_ms) == (True, 0, 1000)
        assert [await files.exists(tmp_path / name) for name in ("a", "none", "link")] == [True, False, False]
        assert await files.canonicalize(tmp_path / "a" / ".." / "a") == os.path.realpath(tmp_path / "a")
        with pytest.raises(RequestFailed, match="not empty"):
            await files.remove(tmp_path / "a")
        with pytest.raises(NotFoundError):
            await files.remove(tmp_path / "none")
        await files.remove(tmp_path / "none", missing_ok=True)
        await files.remove(tmp_path / "a", recursive=True)
        await files.remove(tmp_path / "link")
        assert os.listdir(tmp_path) == []

    on(url, scene)


async def _collected(found: AsyncGenerator[Any, None]) -> list[Any]:
    return [each async for each in found]


def test_trees_are_asked_about_page_by_page(url: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("x = 1\ny = 2\n")
    (tmp_path / os.fsdecode(ODD)).write_text("y")

    async def scene(files: Files, host: Watched) -> None:
        listed = await _collected(files.walk(tmp_path))
        assert all(isinstance(each, FsListEntry) for each in listed)
        assert {bytes(each.name): each.kind for each in listed} == {
            b"": FsNodeKind.DIRECTORY,
            b"a": FsNodeKind.DIRECTORY,
            b"a/one.py": FsNodeKind.FILE,
            ODD: FsNodeKind.FILE,
        }
        (python,) = await _collected(files.glob(tmp_path, "**/*.py"))
        assert isinstance(python, FsWalkEntry)
        assert python.path.native() == os.fsencode(tmp_path / "a" / "one.py")
        matches = await _collected(files.search(tmp_path, "y", literal=True))
        assert all(isinstance(each, FsSearchMatch) for each in matches)
        assert [(each.line, each.text) for each in matches] == [(2, "y = 2"), (1, "y")]
        hashes = await _collected(files.hash(tmp_path / os.fsdecode(ODD)))
        assert isinstance(hashes[0], FsHashEntry)
        assert hashes[0].sha256.startswith("a1fce4363854ff888cff4b8e7875d600")
        async with aclosing(files.walk(tmp_path)) as names:
            async for each in names:
                assert isinstance(each, FsListEntry)
                break

    on(url, scene)


def test_many_files_in_one_request(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        entries = [
            FsWriteEntry(name=b"a", kind=FsNodeKind.FILE, content=b"1"),
            FsWriteEntry(name=b"../a", kind=FsNodeKind.FILE, content=b"2"),
        ]
        (failed,) = await files.write_many(tmp_path, entries)
        assert failed.index == 1
        there, missing = await files.read_many(tmp_path, [b"a", b"b"])
        assert (there.content, missing.content) == (b"1", None)

    on(url, scene)


async def _each(*pieces: bytes) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


def test_archives_go_both_ways(url: str, tmp_path: Path) -> None:
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "file").write_bytes(b"12345" * 500_000)
    (tmp_path / "to").mkdir()

    async def scene(files: Files, host: Watched) -> None:
        errors: list[FsWalkError] = []
        packed = b"".join(await _collected(files.archive(tmp_path / "from", errors)))
        assert errors == []
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            assert archive.getnames() == ["deep", "deep/file"]
        assert await files.extract(tmp_path / "to", files.archive(tmp_path / "from", errors)) == []
        assert (tmp_path / "to" / "deep" / "file").read_bytes() == b"12345" * 500_000
        assert await files.extract(tmp_path / "to", _each(packed[:700], packed[700:])) == []
        with pytest.raises(ValueError, match="too early"):
            await files.extract(tmp_path / "to", _each(packed[:51_200]))

    on(url, scene)


def test_a_sandbox_holds_for_files(url: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_text("kept")

    async def scene(files: Files, host: Watched) -> None:
        report = await host.session.call(ENVIRONMENT_SANDBOX, NoParams())
        if not report.native:
            blockers = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
            pytest.skip(f"no sandbox root can be made here: {'; '.join(blockers)}")
        inside = tmp_path / "in" / "file"
        sandbox = Sandbox.workspace_write(roots=[tmp_path / "in"], tmp=False)
        await files.write(inside, b"x", sandbox=sandbox)
        assert await files.read(inside, sandbox="read-only") == b"x"
        with pytest.raises(RequestFailed):
            await files.write(inside, b"lost", sandbox="read-only")
        for path in (tmp_path / "out", tmp_path / "new"):
            with pytest.raises(RequestFailed):
                await files.write(path, b"lost", sandbox=sandbox)
        with pytest.raises(TransferFailed):
            await files.upload(inside, tmp_path / "out", sandbox=sandbox)
        await files.upload(tmp_path / "out", inside, sandbox=sandbox)
        await files.download(inside, tmp_path / "back", sandbox="read-only")
        assert [(tmp_path / name).read_text() for name in ("in/file", "out", "back")] == ["kept"] * 3
        assert not (tmp_path / "new").exists()

    on(url, scene, home=tmp_path / "in")


def test_a_sandbox_that_is_none_is_refused_before_anything_is_asked(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        with pytest.raises(ValueError, match="not a sandbox"):
            await files.write(tmp_path / "file", b"x", sandbox="strict")
        host.environment_info = None
        with pytest.raises(UnsupportedByServer, match="no home"):
            await files.write(tmp_path / "file", b"x", sandbox="workspace-write")
        assert host.made == []

    on(url, scene)


def test_changes_are_watched(url: str, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        async with files.watch(tmp_path, coalesce=0.0) as watched:
            await files.write(tmp_path / "file", b"x")
            batch = await anext(watched)
            assert [each.path.native() for each in batch.changes][:1] == [os.fsencode(tmp_path / "file")]

    on(url, scene)
