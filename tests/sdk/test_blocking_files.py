"""Files of the blocking client, with a real server."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client.errors import NotFoundError
from execserver.protocol.batches import FsListEntry
from execserver_client import files as asynchronous
from execserver_client.sync._portal import Portal
from execserver_client.sync._remote_file import RemoteFile
from execserver_client.sync.files import Files
from tests.sdk.parts import connect


@pytest.fixture
def files(url: str) -> Iterator[Files]:
    portal = Portal()
    connecting = connect(url)
    client = portal.call(connecting.__aenter__)
    yield Files(
        portal,
        asynchronous.Files(client.session, client.gate, client.router, client.errands),
    )
    portal.call(connecting.__aexit__, None, None, None)
    portal.close()


def test_an_open_file_is_read_and_written(files: Files, tmp_path: Path) -> None:
    with files.open(tmp_path / "file", "replace") as file:
        file.write(b"hello")
        file.write(b"J", offset=0)
        assert file.position == 5
    with files.open(tmp_path / "file") as file:
        assert isinstance(file, RemoteFile)
        assert [file.read(2), *file] == [b"Je", b"llo"]
    assert files.read_text(tmp_path / "file") == "Jello"
    with pytest.raises(NotFoundError):
        file.read(1)


def test_a_tree_goes_there_and_back(files: Files, tmp_path: Path) -> None:
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "file").write_bytes(b"x" * 1_000_000)
    seen: list[int] = []
    assert files.upload(tmp_path / "from", tmp_path / "there", progress=seen.append).files == 1
    assert files.download(tmp_path / "there", tmp_path / "back", progress=seen.append).bytes == 1_000_000
    assert (tmp_path / "back" / "deep" / "file").read_bytes() == b"x" * 1_000_000
    assert seen == [1_000_000, *seen[1:-1], 1_000_000]
    names = [each.name for each in files.walk(tmp_path / "back") if isinstance(each, FsListEntry)]
    assert names == [b"", b"deep", b"deep/file"]


def test_an_archive_goes_from_one_folder_to_another(files: Files, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_bytes(b"x" * 3_000_000)
    (tmp_path / "to").mkdir()
    assert files.extract(tmp_path / "to", files.archive(tmp_path / "from", [])) == []
    assert (tmp_path / "to" / "file").read_bytes() == b"x" * 3_000_000
    packed = b"".join(files.archive(tmp_path / "from", []))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["file"]


def test_changes_are_watched(files: Files, tmp_path: Path) -> None:
    with files.watch(tmp_path, coalesce=0.0) as watched:
        files.write(tmp_path / "file", b"x")
        assert next(iter(watched)).changes[0].path.native().endswith(b"/file")
