"""Kind, size, times, real names, directory listings, and making directories."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from execserver.files import metadata
from execserver.files.metadata import canonicalize, create_directory, get_metadata, read_directory
from tests.files.tools import bound_socket, mode_of, put

Unprivileged = Callable[[], AbstractContextManager[None]]


def kinds(path: bytes) -> tuple[bool, bool, bool]:
    return get_metadata(path)[:3]


def test_kinds_are_those_of_the_target_and_links_are_told_apart(folder: bytes) -> None:
    put(folder + b"/f", b"hello")
    os.mkdir(folder + b"/d")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"f", folder + b"/lf")
    os.symlink(b"d", folder + b"/ld")
    assert kinds(folder + b"/f") == (False, True, False)
    assert kinds(folder + b"/d") == (True, False, False)
    assert kinds(folder + b"/lf") == (False, True, True)
    assert kinds(folder + b"/ld") == (True, False, True)
    assert kinds(folder + b"/fifo") == (False, False, False)
    assert kinds(b"/dev/null") == (False, False, False)
    assert kinds(b"/") == (True, False, False)
    assert get_metadata(folder + b"/lf")[3] == 5
    assert get_metadata(b"/proc/self/status")[3] == 0


def test_times_are_cut_to_milliseconds_and_not_negative(folder: bytes) -> None:
    path = put(folder + b"/f")
    os.utime(path, ns=(0, 1_600_000_000_123_999_999))
    assert get_metadata(path)[4] == 1_600_000_000_123
    os.utime(path, ns=(0, -5_000_000_000))
    assert get_metadata(path)[4] == 0


@pytest.mark.parametrize("look", [get_metadata, canonicalize])
@pytest.mark.parametrize(
    ("name", "number"),
    [(b"missing", errno.ENOENT), (b"dang", errno.ENOENT), (b"loop", errno.ELOOP), (b"f/x", errno.ENOTDIR)],
)
def test_what_is_not_there_is_an_error_of_the_system(
    folder: bytes, look: Callable[[bytes], object], name: bytes, number: int
) -> None:
    put(folder + b"/f")
    os.symlink(b"nowhere", folder + b"/dang")
    os.symlink(b"loop", folder + b"/loop")
    with pytest.raises(OSError) as caught:
        look(folder + b"/" + name)
    assert caught.value.errno == number


def test_what_may_not_be_searched_is_refused(shared_folder: bytes, unprivileged: Unprivileged) -> None:
    os.mkdir(shared_folder + b"/closed")
    put(shared_folder + b"/closed/f")
    os.chmod(shared_folder + b"/closed", 0o000)
    looks: list[Callable[[bytes], object]] = [get_metadata, canonicalize]
    with unprivileged():
        for look in looks:
            with pytest.raises(PermissionError):
                look(shared_folder + b"/closed/f")


def test_links_are_resolved(folder: bytes) -> None:
    folder = os.path.realpath(folder)
    os.mkdir(folder + b"/d")
    put(folder + b"/d/bad\xff (deleted)")
    os.symlink(b"d", folder + b"/l")
    assert canonicalize(folder + b"/l/bad\xff (deleted)") == folder + b"/d/bad\xff (deleted)"
    assert canonicalize(folder) == folder
    assert canonicalize(b"/") == b"/"
    with bound_socket(folder + b"/s"):
        assert canonicalize(folder + b"/s") == folder + b"/s"
    os.mkfifo(folder + b"/fifo")
    assert canonicalize(folder + b"/fifo") == folder + b"/fifo"


def test_links_are_resolved_without_proc(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.realpath(folder)
    put(folder + b"/f")
    os.symlink(b"f", folder + b"/l")
    real = os.readlink

    def readlink(path: bytes) -> bytes:
        if path.startswith(b"/proc/"):
            raise FileNotFoundError
        return real(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert canonicalize(folder + b"/l") == folder + b"/f"


def test_a_listing_has_all_kinds_and_leaves_out_links_to_nowhere(folder: bytes) -> None:
    for name in (b".hidden", b"bad\xff", "ü".encode()):
        put(folder + b"/" + name)
    os.mkdir(folder + b"/d")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"d", folder + b"/dlink")
    os.symlink(b".hidden", folder + b"/link")
    os.symlink(b"nowhere", folder + b"/dangling")
    os.symlink(b"loop", folder + b"/loop")
    assert sorted(read_directory(folder)) == [
        (".hidden", False, True),
        ("bad\ufffd", False, True),
        ("d", True, False),
        ("dlink", True, False),
        ("fifo", False, False),
        ("link", False, True),
        ("ü", False, True),
    ]
    assert read_directory(folder + b"/dlink") == []


@pytest.mark.parametrize(
    ("name", "number"),
    [(b"f", errno.ENOTDIR), (b"fifo", errno.ENOTDIR), (b"missing", errno.ENOENT), (b"loop", errno.ELOOP)],
)
def test_only_directories_are_listed(folder: bytes, name: bytes, number: int) -> None:
    put(folder + b"/f")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"loop", folder + b"/loop")
    with pytest.raises(OSError) as caught:
        read_directory(folder + b"/" + name)
    assert caught.value.errno == number


def test_names_that_may_be_read_but_not_searched_are_listed(
    shared_folder: bytes, unprivileged: Unprivileged
) -> None:
    put(shared_folder + b"/f")
    os.mkdir(shared_folder + b"/d")
    os.symlink(b"f", shared_folder + b"/l")
    os.chmod(shared_folder, 0o444)
    with unprivileged():
        assert sorted(read_directory(shared_folder)) == [("d", True, False), ("f", False, True)]


def test_a_long_listing_is_read_with_pauses(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_BATCH", 4)
    for number in range(10):
        put(folder + b"/%d" % number)
    pauses: list[None] = []
    assert len(read_directory(folder, lambda: pauses.append(None))) == 10
    assert len(pauses) == 2


def test_directories_are_made_with_their_parents(folder: bytes) -> None:
    umask = os.umask(0o027)
    try:
        create_directory(folder + b"/a/b/c", recursive=True)
    finally:
        os.umask(umask)
    assert os.path.isdir(folder + b"/a/b/c")
    assert mode_of(folder + b"/a") == 0o750
    create_directory(folder + b"/a/b", recursive=True)
    os.symlink(b"a", folder + b"/l")
    create_directory(folder + b"/l", recursive=True)
    create_directory(folder + b"/l/n", recursive=True)
    assert os.path.isdir(folder + b"/a/n")
    create_directory(b"/", recursive=True)


def test_very_many_missing_parents_are_made(deep_folder: bytes) -> None:
    path = deep_folder + b"/a" * 1900
    create_directory(path, recursive=True)
    assert os.path.isdir(path)


@pytest.mark.parametrize(
    ("name", "recursive", "number"),
    [
        (b"d", False, errno.EEXIST),
        (b"f", True, errno.EEXIST),
        (b"f", False, errno.EEXIST),
        (b"f/z", True, errno.ENOTDIR),
        (b"fifo/z", True, errno.ENOTDIR),
        (b"dang", True, errno.EEXIST),
        (b"dang/x", True, errno.EEXIST),
        (b"loop", True, errno.EEXIST),
        (b"loop/x", True, errno.ELOOP),
        (b"missing/x", False, errno.ENOENT),
        (b"n" * 300, True, errno.ENAMETOOLONG),
    ],
)
def test_what_is_in_the_way_is_an_error(folder: bytes, name: bytes, recursive: bool, number: int) -> None:
    put(folder + b"/f")
    os.mkdir(folder + b"/d")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"nowhere", folder + b"/dang")
    os.symlink(b"loop", folder + b"/loop")
    with pytest.raises(OSError) as caught:
        create_directory(folder + b"/" + name, recursive)
    assert caught.value.errno == number


def test_a_file_system_that_takes_no_names_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        create_directory(b"/proc/x", recursive=True)
    with pytest.raises(FileNotFoundError):
        create_directory(b"/proc/x/y", recursive=True)
