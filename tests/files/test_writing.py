"""Writing files and devices, never waiting for a reader."""

from __future__ import annotations

import errno
import os
import pty
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from execserver.files.writing import write_all, write_block, write_device, write_file
from execserver.protocol.errors import InvalidRequest
from tests.files.tools import bound_socket, get, mode_of, put

MIB = 1024 * 1024


@pytest.fixture
def stopped_terminal() -> Iterator[bytes]:
    """The path of a terminal whose output is held, as after Ctrl-S."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    termios.tcflow(slave, termios.TCOOFF)
    yield os.fsencode(os.ttyname(slave))
    termios.tcflow(slave, termios.TCOON)
    os.close(slave)
    os.close(master)


@pytest.fixture
def terminal() -> Iterator[tuple[int, bytes]]:
    """The near side of a terminal and the path of the far one."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    yield master, os.fsencode(os.ttyname(slave))
    os.close(slave)
    os.close(master)


def test_a_file_is_created_with_the_default_mode(folder: bytes) -> None:
    umask = os.umask(0o022)
    try:
        write_file(folder + b"/f", b"new")
    finally:
        os.umask(umask)
    assert get(folder + b"/f") == b"new"
    assert mode_of(folder + b"/f") == 0o644


def test_content_is_replaced_and_the_mode_kept(folder: bytes) -> None:
    path = put(folder + b"/f", b"much longer than before")
    os.chmod(path, 0o600)
    write_file(path, b"short")
    assert get(path) == b"short"
    assert mode_of(path) == 0o600
    write_file(path, b"")
    assert get(path) == b""


def test_after_a_failure_nothing_old_follows_what_is_new(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(folder + b"/f", b"old" * 100)
    real = os.write

    def fails(fd: int, data: bytes) -> int:
        if os.lseek(fd, 0, os.SEEK_CUR):
            raise OSError(errno.EIO, "broken disk")
        return real(fd, data[:3])

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(OSError, match="broken disk"):
        write_file(path, b"new content")
    monkeypatch.undo()
    assert get(path) == b"new"


def test_writing_nothing_still_counts_as_writing(folder: bytes) -> None:
    path = put(folder + b"/f")
    os.utime(path, (1, 1))
    write_file(path, b"")
    assert os.stat(path).st_mtime > 1


def test_links_are_followed_also_dangling_ones(folder: bytes) -> None:
    put(folder + b"/f", b"old")
    os.symlink(b"f", folder + b"/l")
    os.symlink(b"made", folder + b"/dangling")
    write_file(folder + b"/l", b"new")
    write_file(folder + b"/dangling", b"x")
    assert get(folder + b"/f") == b"new"
    assert get(folder + b"/made") == b"x"
    assert os.path.islink(folder + b"/l")


def test_large_content_is_written_with_pauses(folder: bytes) -> None:
    pauses: list[None] = []
    content = os.urandom(3 * MIB + 5)
    write_file(folder + b"/f", content, lambda: pauses.append(None))
    assert get(folder + b"/f") == content
    assert len(pauses) == 4


def test_devices_are_written() -> None:
    write_file(b"/dev/null", b"x")
    with pytest.raises(OSError) as caught:
        write_file(b"/dev/full", b"x")
    assert caught.value.errno == errno.ENOSPC
    write_file(b"/dev/full", b"")


def test_a_terminal_takes_what_its_reader_has_room_for(terminal: tuple[int, bytes]) -> None:
    master, path = terminal
    write_file(path, b"hello")
    assert os.read(master, 100) == b"hello"


def test_a_device_that_takes_nothing_times_out(stopped_terminal: bytes) -> None:
    with pytest.raises(OSError) as caught:
        write_file(stopped_terminal, b"x", device_timeout_s=0.05)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_device_that_stops_taking_times_out(terminal: tuple[int, bytes]) -> None:
    fd = os.open(terminal[1], os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        with pytest.raises(OSError) as caught:
            write_device(fd, b"x" * MIB, timeout_s=0.05)
        assert caught.value.errno == errno.ETIMEDOUT
    finally:
        os.close(fd)


def test_what_could_hang_is_refused(folder: bytes) -> None:
    os.mkfifo(folder + b"/fifo")
    with pytest.raises(InvalidRequest, match="is a FIFO"):
        write_file(folder + b"/fifo", b"x")
    with bound_socket(folder + b"/s"), pytest.raises(OSError) as caught:
        write_file(folder + b"/s", b"x")
    assert caught.value.errno == errno.ENXIO


@pytest.mark.parametrize(
    ("name", "number"),
    [(b"", errno.EISDIR), (b"/missing/f", errno.ENOENT), (b"/f/x", errno.ENOTDIR), (b"/loop", errno.ELOOP)],
)
def test_errors_of_the_system_are_passed_on(folder: bytes, name: bytes, number: int) -> None:
    put(folder + b"/f")
    os.symlink(b"loop", folder + b"/loop")
    with pytest.raises(OSError) as caught:
        write_file(folder + name, b"")
    assert caught.value.errno == number


def test_a_file_that_may_not_be_written_is_left_as_it_was(
    shared_folder: bytes, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    path = put(shared_folder + b"/f", b"kept")
    os.chmod(path, 0o444)
    with unprivileged(), pytest.raises(PermissionError):
        write_file(path, b"x")
    assert get(path) == b"kept"


def test_all_bytes_are_written_over_short_writes(monkeypatch: pytest.MonkeyPatch, folder: bytes) -> None:
    fd = os.open(folder + b"/f", os.O_RDWR | os.O_CREAT)
    real_write, real_pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_pwrite(fd, data[:3], offset))
    try:
        write_all(fd, b"abcdefgh")
        write_block(fd, 10, b"12345678")
    finally:
        monkeypatch.undo()
        os.close(fd)
    assert get(folder + b"/f") == b"abcdefgh\0\x0012345678"


def test_a_block_beyond_the_largest_file_is_too_large(folder: bytes) -> None:
    fd = os.open(folder + b"/f", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError) as caught:
            write_block(fd, 2**63 - 2, b"x")
        assert caught.value.errno == errno.EFBIG
    finally:
        os.close(fd)
