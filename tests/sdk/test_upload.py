"""Files and trees that go to a box, with a real server."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from execserver.client.errors import ExecServerError, UnsupportedByServer
from execserver.protocol.environment import Extensions
from execserver_client import _local
from execserver_client._transfer import MOST_NOTES, Account, Transfer
from execserver_client.errors import TransferFailed
from execserver_client.files import Files
from tests.sdk.files_scene import Watched, on

ODD = b"\xff\xfe\n"
LARGE = os.urandom(1000) * 6000
TIME = 1_700_000_000_123_456_789


def look(path: Path | str | bytes) -> tuple[int, int]:
    """Return permissions and time."""
    status = os.lstat(path)
    return status.st_mode & 0o7777, status.st_mtime_ns


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with what copies have to care about."""
    root = tmp_path / "tree"
    (root / "deep" / "empty").mkdir(parents=True)
    (root / "large").write_bytes(LARGE)
    (root / "deep" / "small").write_bytes(b"small")
    (root / "nothing").write_bytes(b"")
    (root / os.fsdecode(ODD)).write_bytes(b"odd")
    (root / "link").symlink_to("large")
    (root / "dangling").symlink_to("/nowhere/at all")
    os.mkfifo(root / "fifo")
    (root / "large").chmod(0o640)
    (root / "deep" / "small").chmod(0o4755)
    for name in ("large", "deep/small", "deep/empty", "deep"):
        os.utime(root / name, ns=(1, TIME))
    (root / "deep").chmod(0o500)
    os.utime(root / "deep", ns=(1, TIME))
    return root


def assert_copied(there: Path) -> None:
    """Check the copy of the tree."""
    assert sorted(os.listdir(os.fsencode(there))) == sorted(
        [b"dangling", b"deep", b"large", b"link", b"nothing", ODD]
    )
    assert (there / "large").read_bytes() == LARGE
    assert (there / os.fsdecode(ODD)).read_bytes() == b"odd"
    assert (there / "nothing").read_bytes() == b""
    assert sorted(os.listdir(there / "deep")) == ["empty", "small"]
    assert [os.readlink(there / name) for name in ("link", "dangling")] == ["large", "/nowhere/at all"]
    assert look(there / "large") == (0o640, TIME)
    assert look(there / "deep" / "small") == (0o755, TIME)
    assert look(there / "deep") == (0o500, TIME)


def test_a_tree_is_the_same_there(url: str, tree: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    async def scene(files: Files, host: Watched) -> None:
        done = await files.upload(tree, tmp_path / "to" / "here", progress=seen.append)
        assert (done.files, done.bytes) == (4, len(LARGE) + len(b"small") + len(b"odd"))
        assert done.left_out == ("fifo is no file, folder or link",)
        assert_copied(tmp_path / "to" / "here")
        (tmp_path / "to" / "here" / "mine").write_text("stays")
        again = await files.upload(os.fsencode(tree), tmp_path / "to" / "here")
        assert again == Transfer(4, done.bytes, done.left_out)
        assert (tmp_path / "to" / "here" / "mine").read_text() == "stays"

    on(url, scene)
    assert seen == sorted(seen)
    assert seen[-1] == len(LARGE) + len(b"small") + len(b"odd")


def test_more_names_than_one_request_takes(url: str, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for number in range(620):
        (tmp_path / "from" / str(number)).write_bytes(b"%d" % number)

    async def scene(files: Files, host: Watched) -> None:
        done = await files.upload(tmp_path / "from", tmp_path / "to")
        assert done.files == 620
        assert all((tmp_path / "to" / str(n)).read_bytes() == b"%d" % n for n in range(620))
        assert len([each for each in host.made if each == "fs/writeMany"]) < 10

    on(url, scene)


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_file_is_the_same_there(url: str, tmp_path: Path, data: bytes) -> None:
    source, target = tmp_path / "source", os.fsencode(tmp_path) + b"/" + ODD
    source.write_bytes(data)
    source.chmod(0o750)
    os.utime(source, ns=(1, TIME))

    seen: list[int] = []

    async def scene(files: Files, host: Watched) -> None:
        (tmp_path / "way").symlink_to("source")
        assert await files.upload(tmp_path / "way", target, progress=seen.append) == Transfer(1, len(data))
        assert seen == [min(end, len(data)) for end in range(2**20, len(data) + 2**20, 2**20) if data]
        assert Path(os.fsdecode(target)).read_bytes() == data
        assert look(target) == (0o750, TIME)

    on(url, scene)


def forget_parts(host: Watched) -> None:
    """Have a server be one that takes pieces in `fs/writeMany` only."""
    assert host.environment_info is not None
    older = msgspec.structs.replace(host.extensions, fs_write_part=False)
    host.environment_info = msgspec.structs.replace(host.environment_info, execserver=older)


def test_a_large_file_goes_in_requests_of_its_own_where_the_server_has_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece once, and in order, however long the disk takes for the first one."""
    (tmp_path / "source").write_bytes(LARGE)
    another, read = threading.Event(), _local.piece

    def slow(fd: int, known: tuple[int, int], begin: int, size: int) -> bytes:
        if begin:
            another.set()
        else:
            another.clear()
            another.wait(0.2)
        return read(fd, known, begin, size)

    monkeypatch.setattr(_local, "piece", slow)

    async def scene(files: Files, host: Watched) -> None:
        await files.upload(tmp_path / "source", tmp_path / "new")
        assert host.made == ["fs/writePart"] * 6
        forget_parts(host)
        await files.upload(tmp_path / "source", tmp_path / "older")
        assert host.made[6:] == ["fs/writeMany"] * 6
        assert (tmp_path / "new").read_bytes() == (tmp_path / "older").read_bytes() == LARGE

    on(url, scene)


@pytest.mark.parametrize("method", ["fs/writePart", "fs/writeMany"])
def test_a_cancelled_upload_leaves_what_was_there(url: str, tmp_path: Path, method: str) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    (tmp_path / "target").write_bytes(b"as it was")

    async def scene(files: Files, host: Watched) -> None:
        seen: list[int] = []
        if method == "fs/writeMany":
            forget_parts(host)
        upload = asyncio.create_task(
            files.upload(tmp_path / "source", tmp_path / "target", progress=seen.append)
        )
        while host.made.count(method) < 2:
            await asyncio.sleep(0)
        host.let_through.clear()
        upload.cancel()
        asyncio.get_running_loop().call_soon(host.let_through.set)
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert max(seen, default=0) < len(LARGE)
        assert (tmp_path / "target").read_bytes() == b"as it was"
        assert sorted(os.listdir(tmp_path)) == ["source", "target"]

    on(url, scene)


def test_what_cannot_be_written_there_is_told_and_the_rest_is_copied(url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "from").mkdir(exist_ok=True)
        (tmp_path / "from" / name).write_text(name)
    (tmp_path / "to" / "one").mkdir(parents=True)
    (tmp_path / "to" / "one" / "held").write_text("")

    async def scene(files: Files, host: Watched) -> None:
        with pytest.raises(TransferFailed, match=r"one: .*[Dd]irectory") as failed:
            await files.upload(tmp_path / "from", tmp_path / "to")
        assert [name for name, _ in failed.value.errors] == ["one"]
        assert "copy again" in (failed.value.hint or "")
        assert (tmp_path / "to" / "two").read_text() == "two"
        with pytest.raises(ExecServerError):
            await files.upload(tmp_path / "from" / "one", tmp_path / "none" / "x" / "y")
        with pytest.raises(FileNotFoundError):
            await files.upload(tmp_path / "nothing", tmp_path / "to")

    on(url, scene)


def test_a_server_without_batches_takes_single_files(url: str, tmp_path: Path) -> None:
    large = LARGE * 2
    (tmp_path / "small").write_bytes(b"small")
    (tmp_path / "large").write_bytes(large)

    async def scene(files: Files, host: Watched) -> None:
        assert host.environment_info is not None
        plain = host.environment_info.__class__(
            shell=host.environment_info.shell, capabilities=host.environment_info.capabilities
        )
        host.environment_info = plain
        assert host.extensions == Extensions()
        await files.upload(tmp_path / "small", tmp_path / "a")
        assert await files.upload(tmp_path / "large", tmp_path / "b") == Transfer(1, len(large))
        with pytest.raises(UnsupportedByServer):
            await files.upload(tmp_path, tmp_path / "c")
        assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"small", large)
        assert "fs/writeMany" not in host.made

    on(url, scene)


def test_a_file_that_changes_while_it_is_read_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    fd = _local.opened(os.fsencode(tmp_path / "file"), follow=False)
    try:
        known = _local.identity(os.fstat(fd))
        assert _local.piece(fd, known, 1, 3) == b"234"
        with pytest.raises(_local.Changed):
            _local.piece(fd, known, 3, 3)
        with pytest.raises(_local.Changed):
            _local.whole(fd, 4)
        os.utime(tmp_path / "file", ns=(1, 1))
        with pytest.raises(_local.Changed):
            _local.piece(fd, known, 1, 3)
    finally:
        os.close(fd)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(_local.Changed):
        _local.opened(os.fsencode(tmp_path / "fifo"), follow=False)


def test_failures_are_bounded() -> None:
    account = Account(None)
    for number in range(MOST_NOTES - 1):
        account.fail(str(number), "no")
    with pytest.raises(TransferFailed, match="0: no"):
        account.fail("last", "no")
    for _ in range(MOST_NOTES + 5):
        account.leave_out("x")
    assert len(account._left_out) == MOST_NOTES


def test_an_ordinary_user_is_told_what_he_may_not_read(url: str, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    for name in ("file", "folder/below", "kept"):
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_text("x")
    closed = [tmp_path / "from" / name for name in ("file", "folder")]

    async def scene(files: Files, host: Watched) -> None:
        for copy in (files.upload, files.download):
            with pytest.raises(TransferFailed, match="denied") as failed:
                await copy(tmp_path / "from", tmp_path / copy.__name__)
            assert {Path(name).name for name, _ in failed.value.errors} == {"file", "folder"}
            assert (tmp_path / copy.__name__ / "kept").read_text() == "x"
            assert not (tmp_path / copy.__name__ / "file").exists()
        (tmp_path / "held").mkdir(0o500)
        with pytest.raises(PermissionError):
            await files.download(tmp_path / "from" / "kept", tmp_path / "held" / "copy")
        with pytest.raises(TransferFailed, match="denied"):
            await files.upload(tmp_path / "from" / "kept", tmp_path / "held" / "copy")

    for path in closed:
        path.chmod(0)
    try:
        on(url, scene)
    finally:
        for path in closed:
            path.chmod(0o700)
