"""A file that is replaced as a whole, in a folder where others may write, too."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.protocol.files import FsWriteFileParams
from execserver.protocol.paths import PathUri
from execserver.services.files.filesystem import FileService
from execserver.services.files.replacing import replace_file
from execserver.settings import Settings


@pytest.fixture
def service() -> Iterator[FileService]:
    made = FileService(Settings())
    yield made
    made.close()


def params(path: Path, mode: int | None = None) -> FsWriteFileParams:
    return FsWriteFileParams(
        path=PathUri.from_native(os.fsencode(path)), data_base64="", atomic=True, mode=mode
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_the_place_of_the_new_file_is_not_followed(
    service: FileService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    victim, place = tmp_path / "victim", tmp_path / "file"
    victim.write_bytes(b"kept")
    victim.chmod(0o600)
    if is_there:
        place.write_bytes(b"old")
    monkeypatch.setattr("execserver.services.files.replacing.fresh_name", lambda: b".execserver-guessed")
    (tmp_path / ".execserver-guessed").symlink_to(victim)
    with pytest.raises(OSError):
        replace_file(service, service, params(place, 0o666), b"new")
    assert (victim.read_bytes(), stat.S_IMODE(victim.stat().st_mode)) == (b"kept", 0o600)
    assert [each.read_bytes() for each in [place] if each.exists()] == [b"old"] * is_there


def test_a_new_file_in_a_folder_behind_a_link_is_made(service: FileService, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    replace_file(service, service, params(tmp_path / "link/file"), b"new")
    assert (tmp_path / "folder/file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "folder") == ["file"]
