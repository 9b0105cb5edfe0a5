"""Copying bytes by each of the ways."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from execserver.files import copy_data as module
from execserver.files.copy_data import copy_data, copy_to_device
from tests.files.tools import get, put

CONTENT = os.urandom(700_001)
Way = Callable[..., int]


def run(
    source: bytes, target: bytes, size: int | None = None, pause: Callable[[], None] = lambda: None
) -> None:
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        copy_data(reading, writing, os.fstat(reading).st_size if size is None else size, pause)
    finally:
        os.close(reading)
        os.close(writing)


def refusing(number: int, after: int = 0) -> Way:
    """Return a system call that fails, after having worked some times."""
    real = os.copy_file_range
    left = after

    def refuse(*arguments: int) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            return real(*arguments)
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("forbidden", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]])
def test_every_way_copies_everything(
    folder: bytes, monkeypatch: pytest.MonkeyPatch, forbidden: list[str]
) -> None:
    for name in forbidden:
        monkeypatch.setattr(os, name, refusing(errno.ENOSYS))
    monkeypatch.setattr(module, "_PIECE_BYTES", 100_000)
    pauses: list[None] = []
    run(put(folder + b"/f", CONTENT), folder + b"/g", pause=lambda: pauses.append(None))
    assert get(folder + b"/g") == CONTENT
    assert len(pauses) == 8


def test_another_way_goes_on_where_the_first_stopped(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.EXDEV, after=2))
    monkeypatch.setattr(module, "_PIECE_BYTES", 100_000)
    run(put(folder + b"/f", CONTENT), folder + b"/g")
    assert get(folder + b"/g") == CONTENT


def test_an_error_of_the_disk_is_not_hidden_by_another_way(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(errno.ENOSPC))
    with pytest.raises(OSError) as caught:
        run(put(folder + b"/f", CONTENT), folder + b"/g")
    assert caught.value.errno == errno.ENOSPC


def test_a_file_without_a_size_is_copied_to_its_end(folder: bytes) -> None:
    run(b"/proc/self/mountinfo", folder + b"/g")
    assert get(folder + b"/g") == get(b"/proc/self/mountinfo")


def test_a_file_that_grows_is_copied_as_it_was_and_one_that_shrinks_ends_early(folder: bytes) -> None:
    source = put(folder + b"/f", b"hello world")
    run(source, folder + b"/g", size=5)
    assert get(folder + b"/g") == b"hello"
    run(source, folder + b"/g", size=500)
    assert get(folder + b"/g") == b"hello world"


def test_a_device_takes_everything(folder: bytes) -> None:
    source = os.open(put(folder + b"/f", CONTENT), os.O_RDONLY)
    device = os.open("/dev/null", os.O_WRONLY | os.O_NONBLOCK)
    try:
        copy_to_device(source, device, timeout_s=1.0)
        assert os.lseek(source, 0, os.SEEK_CUR) == len(CONTENT)
    finally:
        os.close(source)
        os.close(device)
