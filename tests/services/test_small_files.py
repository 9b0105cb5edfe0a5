"""Whole small files, within a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.files.reading import FileTooLarge
from execserver.protocol.errors import InvalidRequest, NotFound
from execserver.services.files.filesystem import FileService
from execserver.services.files.small import read_small
from execserver.settings import Settings
from tests.files.tools import open_descriptors


@pytest.fixture
def files() -> Iterator[FileService]:
    """The file operations of a server."""
    made = FileService(Settings())
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
def test_a_file_up_to_the_limit_is_read_whole(files: FileService, tmp_path: Path, size: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(size))
    before = open_descriptors()
    assert read_small(files, files, os.fsencode(path), size) == path.read_bytes()
    if size:
        with pytest.raises(FileTooLarge):
            read_small(files, files, os.fsencode(path), size - 1)
    assert open_descriptors() == before


def test_what_the_system_refuses_has_the_contracts_error(files: FileService, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="No such file or directory"):
        read_small(files, files, os.fsencode(tmp_path / "missing"), 10)
    with pytest.raises(InvalidRequest, match="is not a file"):
        read_small(files, files, os.fsencode(tmp_path), 10)
