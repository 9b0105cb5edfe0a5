"""Holes that stay holes, and what happens where there is no room: on file systems of the test's own."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.files.copy import copy
from execserver.files.writing import write_block, write_file
from tests.files.tools import get, put

MIB = 1024 * 1024
TIB = 1024 * 1024 * MIB
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[bytes]:
    """A tmpfs of 16 MiB; only root may mount one."""
    target = os.fsencode(tmp_path / "small")
    os.mkdir(target)
    if LIBC.mount(b"none", target, b"tmpfs", 0, b"size=16m") != 0:
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield target
    assert LIBC.umount2(target, 2) == 0


def used(folder: bytes) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def sparse(path: bytes, size: int, parts: dict[int, bytes]) -> bytes:
    """Write a file of `size` bytes with data at some offsets, and holes between."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for at, data in parts.items():
        os.pwrite(fd, data, at)
    os.ftruncate(fd, size)
    os.close(fd)
    return path


def test_a_hole_of_terabytes_is_copied_as_a_hole(small: bytes) -> None:
    parts = {0: b"a" * 5000, TIB: b"b" * 5000, 3 * TIB - 7: b"end"}
    source = sparse(small + b"/f", 4 * TIB, parts)
    before = used(small)
    target = small + b"/g"
    copy(source, target, recursive=False)
    status = os.stat(target)
    assert status.st_size == 4 * TIB
    assert status.st_blocks == os.stat(source).st_blocks
    assert used(small) <= before * 2
    fd = os.open(target, os.O_RDONLY)
    for at, data in parts.items():
        assert os.pread(fd, len(data) + 3, at) == data + bytes(3)
    os.close(fd)


def test_nothing_old_shows_through_a_hole(folder: bytes) -> None:
    source = sparse(folder + b"/f", 8 * MIB, {2 * MIB: b"data"})
    if os.stat(source).st_blocks * 512 >= 8 * MIB:
        pytest.skip("this file system keeps no holes")
    target = put(folder + b"/g", b"old" * 4 * MIB)
    copy(source, target, recursive=False)
    assert get(target) == get(source)
    assert os.stat(target).st_blocks * 512 < MIB


def test_a_tree_keeps_its_holes(small: bytes) -> None:
    os.mkdir(small + b"/d")
    sparse(small + b"/d/f", TIB, {})
    copy(small + b"/d", small + b"/e", recursive=True)
    assert os.stat(small + b"/e/f").st_size == TIB
    assert os.stat(small + b"/e/f").st_blocks == 0


def test_a_copy_without_room_is_refused_before_the_disk_is_full(
    small: bytes, folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(folder + b"/f", b"x" * 20 * MIB)
    target = put(small + b"/g", b"old")
    os.chmod(target, 0o600)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: pytest.fail("something was written"))
    with pytest.raises(OSError, match="No space") as caught:
        copy(source, target, recursive=False)
    assert caught.value.errno == errno.ENOSPC
    assert get(target) == b"old"
    assert os.stat(target).st_mode & 0o777 == 0o600


def test_a_file_replaces_one_that_takes_the_room_it_needs(small: bytes, folder: bytes) -> None:
    source = put(folder + b"/f", b"x" * 12 * MIB)
    target = put(small + b"/g", b"y" * 12 * MIB)
    copy(source, target, recursive=False)
    assert get(target) == get(source)


def test_blocks_set_aside_are_not_taken_for_data(small: bytes, folder: bytes) -> None:
    source = folder + b"/f"
    fd = os.open(source, os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(fd, 0, 20 * MIB)
    keeps_holes = os.lseek(fd, 0, os.SEEK_HOLE) == 0
    os.close(fd)
    if not keeps_holes:
        pytest.skip("this file system takes blocks that were set aside for data")
    copy(source, small + b"/g", recursive=False)
    assert os.stat(small + b"/g").st_size == 20 * MIB


def test_a_write_without_room_is_refused_and_leaves_the_old_content(small: bytes) -> None:
    target = put(small + b"/g", b"old")
    with pytest.raises(OSError, match="No space"):
        write_file(target, b"x" * 17 * MIB)
    assert get(target) == b"old"


def test_where_room_runs_out_it_is_given_back(small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that cannot be asked: its kind is not told here."""
    monkeypatch.setattr("execserver.files.space._kind_of", lambda device: b"btrfs")
    before = used(small)
    with pytest.raises(OSError, match="No space"):
        write_file(small + b"/g", b"x" * 17 * MIB)
    assert (get(small + b"/g"), used(small)) == (b"", before)
    put(small + b"/f", b"x" * 10 * MIB)
    with pytest.raises(OSError, match="No space"):
        copy(small + b"/f", small + b"/h", recursive=False)
    assert get(small + b"/h") == b""
    assert used(small) < 11 * MIB


def test_a_file_that_is_open_can_be_used_after_a_block_found_no_room(small: bytes) -> None:
    filler = put(small + b"/filler", b"x" * 15 * MIB)
    fd = os.open(small + b"/g", os.O_RDWR | os.O_CREAT)
    write_block(fd, 0, b"kept")
    with pytest.raises(OSError, match="No space") as caught:
        write_block(fd, MIB, b"y" * 2 * MIB)
    assert caught.value.errno == errno.ENOSPC
    os.unlink(filler)
    write_block(fd, MIB, b"z" * MIB)
    assert (os.pread(fd, 4, 0), os.pread(fd, 2, MIB)) == (b"kept", b"zz")
    os.close(fd)
