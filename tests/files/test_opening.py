"""Opening only what is a file, and never waiting for anything."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from execserver.files.opening import is_character_device, open_entry, open_regular, open_replace, open_target
from execserver.protocol.errors import InvalidRequest
from tests.files.tools import bound_socket, get, mode_of, put
from tests.support.source import ROOT

Unprivileged = Callable[[], AbstractContextManager[None]]
Opener = Callable[[bytes], int]


def test_a_regular_file_is_opened_through_links(folder: bytes) -> None:
    put(folder + b"/f", b"hello")
    os.symlink(b"f", folder + b"/l")
    fd = open_regular(folder + b"/l")
    try:
        assert os.read(fd, 10) == b"hello"
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", [b"d", b"fifo", b"to-fifo", b"null"])
def test_only_files_are_read(folder: bytes, name: bytes) -> None:
    os.mkdir(folder + b"/d")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"fifo", folder + b"/to-fifo")
    os.symlink(b"/dev/null", folder + b"/null")
    path = folder + b"/" + name
    with pytest.raises(InvalidRequest) as caught:
        open_regular(path)
    assert caught.value.message == f"path `{os.fsdecode(path)}` is not a file"


def test_a_socket_has_the_error_of_opening_it(folder: bytes) -> None:
    openers: list[Opener] = [open_regular, open_replace, open_target]
    with bound_socket(folder + b"/s"):
        for opener in openers:
            with pytest.raises(OSError) as caught:
                opener(folder + b"/s")
            assert caught.value.errno == errno.ENXIO


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"missing", errno.ENOENT),
        (b"dangling", errno.ENOENT),
        (b"loop", errno.ELOOP),
        (b"f/x", errno.ENOTDIR),
    ],
)
def test_errors_of_the_system_are_passed_on(folder: bytes, name: bytes, number: int) -> None:
    put(folder + b"/f")
    os.symlink(b"nowhere", folder + b"/dang")
    os.symlink(b"loop", folder + b"/loop")
    with pytest.raises(OSError) as caught:
        open_regular(folder + b"/" + name)
    assert caught.value.errno == number


def test_a_missing_permission_comes_before_the_kind_of_file(
    shared_folder: bytes, unprivileged: Unprivileged
) -> None:
    os.mkdir(shared_folder + b"/closed", 0o000)
    put(shared_folder + b"/secret")
    os.chmod(shared_folder + b"/secret", 0o000)
    with unprivileged():
        for name in (b"/closed", b"/closed/x", b"/secret"):
            with pytest.raises(PermissionError):
                open_regular(shared_folder + name)
        with pytest.raises(PermissionError):
            open_replace(shared_folder + b"/new")


def test_a_fifo_with_a_waiting_reader_is_left_alone(folder: bytes) -> None:
    os.mkfifo(folder + b"/fifo")
    reader = os.open(folder + b"/fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        openers: list[Opener] = [open_replace, open_target]
        for opener in openers:
            with pytest.raises(InvalidRequest, match="is a FIFO"):
                opener(folder + b"/fifo")
    finally:
        os.close(reader)


def test_replacing_empties_a_file_and_creates_a_missing_one(folder: bytes) -> None:
    put(folder + b"/f", b"old")
    os.symlink(b"made", folder + b"/dangling")
    umask = os.umask(0o027)
    try:
        os.close(open_replace(folder + b"/f"))
        os.close(open_replace(folder + b"/dangling"))
    finally:
        os.umask(umask)
    assert get(folder + b"/f") == b""
    assert get(folder + b"/made") == b""
    assert mode_of(folder + b"/made") == 0o640


def test_replacing_takes_files_only(folder: bytes) -> None:
    with pytest.raises(InvalidRequest, match="path `/dev/null` is not a file"):
        open_replace(b"/dev/null")
    with pytest.raises(IsADirectoryError):
        open_replace(folder)
    with pytest.raises(FileNotFoundError):
        open_replace(folder + b"/missing/f")


OPEN_A_TERMINAL = """
import errno, os, sys
from execserver.files.opening import open_target
open_target(os.fsencode(sys.argv[1]))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    sys.exit(error.errno)
"""


def test_a_terminal_that_is_opened_does_not_become_the_controlling_one() -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", OPEN_A_TERMINAL, os.ttyname(slave)]
    try:
        done = subprocess.run(command, cwd=ROOT, start_new_session=True, check=False)
    finally:
        os.close(slave)
        os.close(master)
    assert done.returncode == errno.ENXIO


def test_an_entry_is_opened_without_following_a_link(folder: bytes) -> None:
    put(folder + b"/f", b"x")
    os.symlink(b"f", folder + b"/l")
    os.mkfifo(folder + b"/fifo")
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.close(open_entry(b"f", directory))
        with pytest.raises(OSError, match="symbolic links"):
            open_entry(b"l", directory)
        with pytest.raises(InvalidRequest, match="is not a file"):
            open_entry(b"fifo", directory)
    finally:
        os.close(directory)


def test_character_devices_are_known(folder: bytes) -> None:
    assert is_character_device(b"/dev/null")
    assert not is_character_device(folder)
    assert not is_character_device(folder + b"/missing")
