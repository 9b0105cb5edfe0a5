"""Files and trees that come from a box: from a real server, and from one that means ill."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.client.errors import (
    ExecServerError,
    FileTooLarge,
    NotFoundError,
    ProtocolViolation,
    TransferFailed,
    UnsupportedByServer,
)
from execserver_client._transfer import Transfer
from execserver_client.files import Files
from tests.box.liar import EVIL, SESSION, Asked, Liar
from tests.sdk.files_scene import Watched, on
from tests.sdk.test_upload import LARGE, ODD, TIME, assert_copied, look, tree

__all__ = ["tree"]  # a fixture


def test_a_tree_is_the_same_here(url: str, tree: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    async def scene(files: Files, host: Watched) -> None:
        done = await files.download(tree, tmp_path / "here", progress=seen.append)
        assert done == Transfer(4, len(LARGE) + len(b"small") + len(b"odd"), done.left_out)
        assert_copied(tmp_path / "here")
        (tmp_path / "here" / "mine").write_text("stays")
        (tmp_path / "here" / "deep").chmod(0o700)
        await files.download(tree, os.fsencode(tmp_path / "here"))
        assert (tmp_path / "here" / "mine").read_text() == "stays"

    on(url, scene)
    assert seen == sorted(seen)
    assert seen[-1] == len(LARGE) + len(b"small") + len(b"odd")


def test_an_empty_folder_is_made(url: str, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()

    async def scene(files: Files, host: Watched) -> None:
        assert await files.download(tmp_path / "from", tmp_path / "to") == Transfer(0, 0)
        assert os.listdir(tmp_path / "to") == []

    on(url, scene)


@pytest.mark.parametrize("data", [b"", b"small", LARGE * 2], ids=["empty", "small", "large"])
def test_a_file_is_the_same_here(url: str, tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    source.chmod(0o4750)
    os.utime(source, ns=(1, TIME))

    async def scene(files: Files, host: Watched) -> None:
        target = os.fsencode(tmp_path) + b"/" + ODD
        assert await files.download(source, target) == Transfer(1, len(data))
        assert Path(os.fsdecode(target)).read_bytes() == data
        assert look(target) == (0o750, TIME)
        assert host.made.count("fs/open") == host.made.count("fs/close") == (len(data) > 8 * 2**20)

    on(url, scene)


def test_a_link_here_is_replaced_and_not_followed(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "precious").write_text("old")
    (tmp_path / "link").symlink_to("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to("folder")
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_text("new")

    async def scene(files: Files, host: Watched) -> None:
        await files.download(tmp_path / "source", tmp_path / "link")
        assert (tmp_path / "precious").read_text() == "old"
        assert (tmp_path / "link").read_text() == "new"
        with pytest.raises(OSError):
            await files.download(tmp_path / "from", tmp_path / "way")
        assert os.listdir(tmp_path / "folder") == []

    on(url, scene)


def test_a_cancelled_download_leaves_what_was_there(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE * 2)
    (tmp_path / "target").write_bytes(b"as it was")

    async def scene(files: Files, host: Watched) -> None:
        come = asyncio.Event()
        download = asyncio.create_task(
            files.download(tmp_path / "source", tmp_path / "target", progress=lambda _: come.set())
        )
        await come.wait()
        download.cancel()
        with pytest.raises(asyncio.CancelledError):
            await download
        assert (tmp_path / "target").read_bytes() == b"as it was"
        assert sorted(os.listdir(tmp_path)) == ["source", "target"]
        assert host.made[-1] == "fs/close"

    on(url, scene)


def test_only_so_much_is_asked_for_as_can_be_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE * 3)

    async def scene(files: Files, host: Watched) -> None:
        most = 0

        def note(come: int) -> None:
            nonlocal most
            most = max(most, host.made.count("fs/readBlock") - come // 2**20)

        await files.download(tmp_path / "source", tmp_path / "target", progress=note)
        assert 0 < most <= 5

    on(url, scene)


def test_the_caller_bounds_what_comes(url: str, tree: Path, tmp_path: Path) -> None:
    async def scene(files: Files, host: Watched) -> None:
        with pytest.raises(FileTooLarge):
            await files.download(tree / "large", tmp_path / "file", max_bytes=len(LARGE) - 1)
        with pytest.raises(FileTooLarge):
            await files.download(tree, tmp_path / "folder", max_bytes=2_000_000)
        await files.download(tree / "large", tmp_path / "whole", max_bytes=len(LARGE))
        assert not (tmp_path / "file").exists()
        assert not (tmp_path / "folder" / "large").exists()

    on(url, scene)


def test_what_is_not_there_is_told(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("x")

    async def scene(files: Files, host: Watched) -> None:
        with pytest.raises(NotFoundError):
            await files.download(tmp_path / "none", tmp_path / "to")
        with pytest.raises(TransferFailed, match="no file"):
            await files.download(tmp_path / "fifo", tmp_path / "to")
        with pytest.raises(FileNotFoundError):
            await files.download(tmp_path / "file", tmp_path / "no" / "to")
        with pytest.raises(IsADirectoryError):
            await files.download(tmp_path / "file", "/")
        host.environment_info = None
        with pytest.raises(UnsupportedByServer):
            await files.download(tmp_path, tmp_path / "to")

    on(url, scene)


# --- a box that means ill -----------------------------------------------------------------------------------


def introduce(asked: Asked) -> None:
    shell = {"name": "sh", "path": "/bin/sh"}
    own = {"version": EVIL, "fsArchive": True, "fsChange": True, "fsMany": True}
    asked.result({"sessionId": SESSION, "environmentInfo": {"shell": shell, "execserver": own}})


def metadata(*, folder: bool, size: int = 0) -> Callable[[Asked], None]:
    kind = {"isDirectory": folder, "isFile": not folder, "isSymlink": False}
    return lambda asked: asked.result({**kind, "size": size, "createdAtMs": 0, "modifiedAtMs": 0})


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = 1 if kind == tarfile.REGTYPE else 0
    return info


def packed(*members: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return file.getvalue()


def sending(data: bytes, **more: object) -> Callable[[Asked], None]:
    chunk = base64.b64encode(data).decode()
    return lambda asked: asked.result({"chunk": chunk, "errors": [], "next": None, **more})


def evil(target: Path, archive: Callable[[Asked], None], max_bytes: int | None = None) -> Exception | None:
    """Download a tree from a box with an answer to `fs/archive`; return the error."""
    found: list[Exception | None] = []

    async def scene(files: Files, host: Watched) -> None:
        try:
            await files.download("/tree", target, max_bytes=max_bytes)
        except (ExecServerError, OSError) as error:
            found.append(error.with_traceback(None))
        else:
            found.append(None)

    with Liar(initialize=introduce, fs_getMetadata=metadata(folder=True), fs_archive=archive) as liar:
        on(liar.url, scene)
    return found[0]


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("/etc/execserver-test")],
        [member("way", tarfile.SYMTYPE, ".."), member("way/out")],
        [member("way", tarfile.SYMTYPE, "/"), member("way/tmp/out", tarfile.DIRTYPE)],
        [member("hard", tarfile.LNKTYPE, "../secret")],
        [member("way", tarfile.SYMTYPE, ".."), member("hard", tarfile.LNKTYPE, "way/secret")],
        [member("", tarfile.SYMTYPE, "../secret")],
        [member(".", tarfile.SYMTYPE, "../secret")],
        [member("d/" * 300, tarfile.DIRTYPE)],
    ],
)
def test_nothing_is_written_outside_of_the_target(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "secret").write_text("secret")
    assert evil(tmp_path / "here", sending(packed(*members))) is not None
    assert sorted(os.listdir(tmp_path)) == ["here", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"
    assert os.stat(tmp_path / "secret").st_nlink == 1
    assert not [name for name in os.listdir(tmp_path / "here") if name not in ("way", "d", "a")]


def test_set_id_bits_and_devices_are_not_taken(tmp_path: Path) -> None:
    members = [member("su", mode=0o6755), member("dev", tarfile.CHRTYPE), member("pipe", tarfile.FIFOTYPE)]
    assert evil(tmp_path / "here", sending(packed(*members))) is None
    assert os.listdir(tmp_path / "here") == ["su"]
    assert look(tmp_path / "here" / "su")[0] == 0o755


def test_what_is_no_archive_ends_the_download(tmp_path: Path) -> None:
    cut = packed(member("whole"), member("cut"))[:1536]
    for number, data in enumerate((b"x" * 512, packed(member("a"))[:700], cut)):
        error = evil(tmp_path / str(number), sending(data))
        assert isinstance(error, ProtocolViolation)
        assert "cut" not in os.listdir(tmp_path / str(number))
    assert isinstance(evil(tmp_path / "huge", sending(bytes(5 * 2**20))), ProtocolViolation)


def test_an_archive_without_end_is_given_up_at_the_callers_limit(tmp_path: Path) -> None:
    begun = 0

    def endless(asked: Asked) -> None:
        nonlocal begun
        position = {"path": "file:///tree/x", "offset": begun, "size": 2**62}
        begun += 1
        if begun == 1:
            huge = member("huge")
            huge.size = 2**33 - 1
            sending(huge.tobuf(), next=position)(asked)
        else:
            sending(b"x" * 2**18, next=position)(asked)

    assert isinstance(evil(tmp_path / "here", endless, max_bytes=2**20), FileTooLarge)
    assert os.listdir(tmp_path / "here") == []
    assert begun < 10


def test_pages_with_nothing_on_them_are_given_up(tmp_path: Path) -> None:
    begun = 0

    def barren(asked: Asked) -> None:
        nonlocal begun
        begun += 1
        position = {"path": "file:///tree/x", "offset": begun, "size": 2**62}
        sending(b"", next=position)(asked)

    assert isinstance(evil(tmp_path / "here", barren), ProtocolViolation)
    assert begun < 1100
    same = sending(b"", next={"path": "file:///tree/x", "offset": 1, "size": 2})
    assert isinstance(evil(tmp_path / "there", same), ProtocolViolation)


def test_errors_are_told_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    errors = [{"path": "file:///tree/%1B", "message": EVIL}]
    error = evil(tmp_path / "here", sending(packed(member("a")), errors=errors))
    assert isinstance(error, TransferFailed)
    assert str(error).isprintable()
    assert os.listdir(tmp_path / "here") == ["a"]
    many = sending(b"", errors=errors * 20_000)
    assert isinstance(evil(tmp_path / "many", many), TransferFailed)


def test_a_file_that_is_shorter_or_longer_than_told_is_not_taken(tmp_path: Path) -> None:
    size = 9 * 2**20

    def version(asked: Asked) -> None:
        asked.result({"version": {"modifiedAtNs": 1, "size": size}, "mode": 0o644})

    def opened(asked: Asked) -> None:
        asked.result({"handleId": asked.params["handleId"]})

    def play(blocks: Callable[[Asked], None]) -> list[str]:
        async def scene(files: Files, host: Watched) -> None:
            with pytest.raises((TransferFailed, ProtocolViolation)):
                await files.download("/file", tmp_path / "here")

        with Liar(
            initialize=introduce,
            fs_getMetadata=metadata(folder=False, size=size),
            fs_getVersion=version,
            fs_open=opened,
            fs_readBlock=blocks,
            fs_close=lambda asked: asked.result({}),
        ) as liar:
            on(liar.url, scene)
        return liar.asked

    for length in (-1, 1):

        def block(asked: Asked, more: int = length) -> None:
            chunk = base64.b64encode(bytes(asked.params["len"] + more)).decode()
            asked.result({"chunk": chunk, "eof": False})

        assert play(block)[-1] == "fs/close"
        assert os.listdir(tmp_path) == []
