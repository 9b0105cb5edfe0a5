"""Copying files, links and trees."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from execserver.files.copy import CopyOptions, copied_bytes, copy
from execserver.protocol.errors import InvalidRequest
from tests.files.tools import bound_socket, depth_of, dig, get, mode_of, open_descriptors, put

INSIDE = "fs/copy cannot copy a directory to itself or one of its descendants"


def tree(root: bytes) -> dict[bytes, bytes]:
    """Return relative path -> content, link text or kind of everything below a root."""
    found = {}
    for parent, directories, names in os.walk(root):
        for name in directories + names:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                shown = b"-> " + os.readlink(path)
            elif os.path.isdir(path):
                shown = b"/"
            else:
                shown = get(path) if os.path.isfile(path) else b"?"
            found[os.path.relpath(path, root)] = shown
    return found


@pytest.fixture
def source(folder: bytes) -> bytes:
    """A tree with every kind of file."""
    root = folder + b"/source"
    os.makedirs(root + b"/sub/deep")
    put(root + b"/a", b"A")
    put(root + b"/sub/b\xff", b"B")
    put(root + b"/sub/deep/c", b"C" * 300_000)
    os.symlink(b"a", root + b"/link")
    os.symlink(b"nowhere", root + b"/sub/dangling")
    os.mkfifo(root + b"/fifo")
    return root


def test_a_file_is_copied_with_its_permissions_and_without_its_times(folder: bytes) -> None:
    path = put(folder + b"/f", b"hello")
    os.chmod(path, 0o4750)
    os.utime(path, (1, 1))
    copy(path, folder + b"/g", recursive=False)
    assert get(folder + b"/g") == b"hello"
    # From a file an ordinary user writes into, the kernel takes the bit that lends its owner's rights.
    assert mode_of(folder + b"/g") == (0o4750 if os.geteuid() == 0 else 0o750)
    assert os.stat(folder + b"/g").st_mtime > 1


def test_a_file_replaces_another_also_through_a_link(folder: bytes) -> None:
    path = put(folder + b"/f", b"new")
    other = put(folder + b"/g", b"much longer than before")
    os.chmod(path, 0o644)
    os.chmod(other, 0o600)
    os.symlink(b"g", folder + b"/l")
    copy(path, folder + b"/l", recursive=True)
    assert os.path.islink(folder + b"/l")
    assert get(other) == b"new"
    assert mode_of(other) == 0o644
    os.symlink(b"made", folder + b"/dangling")
    copy(path, folder + b"/dangling", recursive=False)
    assert get(folder + b"/made") == b"new"


def test_after_a_failed_copy_nothing_old_follows_what_is_new(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(folder + b"/f", b"new" * 10)
    other = put(folder + b"/g", b"old" * 100)

    def fails(source: int, target: int, length: int) -> int:
        if os.lseek(source, 0, os.SEEK_CUR):
            raise OSError(errno.ENOSPC, "full")
        return os.sendfile(target, source, None, 6)

    monkeypatch.setattr(os, "copy_file_range", fails)
    with pytest.raises(OSError, match="full"):
        copy(path, other, recursive=False)
    assert get(other) == b"newnew"


@pytest.mark.parametrize("name", [b"f", b"hard", b"soft"])
def test_a_file_copied_onto_itself_is_refused_and_kept(folder: bytes, name: bytes) -> None:
    path = put(folder + b"/f", b"hello")
    os.link(path, folder + b"/hard")
    os.symlink(b"f", folder + b"/soft")
    with pytest.raises(InvalidRequest) as caught:
        copy(path, folder + b"/" + name, recursive=False)
    assert caught.value.message == f"fs/copy cannot copy the file `{os.fsdecode(path)}` onto itself"
    assert get(path) == b"hello"


def test_a_file_without_a_size_is_copied(folder: bytes) -> None:
    copy(b"/proc/self/status", folder + b"/g", recursive=False)
    assert get(folder + b"/g").startswith(b"Name:")


def test_a_file_without_an_end_fills_no_disk(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of this process's pages has 256 GiB, and no size."""
    monkeypatch.setattr("execserver.files.copy_data.UNSIZED_FILE_BYTES", 1_000_000)
    with pytest.raises(OSError, match="too large") as caught:
        copy(b"/proc/self/pagemap", folder + b"/g", recursive=False)
    assert caught.value.errno == errno.EFBIG
    assert get(folder + b"/g") == b""
    copy(b"/proc/self/pagemap", b"/dev/null", recursive=False)


def test_a_device_takes_a_copy(folder: bytes) -> None:
    copy(put(folder + b"/f", b"x"), b"/dev/null", recursive=False)


def test_a_link_is_copied_as_a_link(folder: bytes) -> None:
    os.symlink(b"any text", folder + b"/l")
    copy(folder + b"/l", folder + b"/m", recursive=False)
    assert os.readlink(folder + b"/m") == b"any text"
    with pytest.raises(FileExistsError):
        copy(folder + b"/l", folder + b"/m", recursive=False)


def test_a_tree_is_copied_without_special_files_and_directory_modes(folder: bytes, source: bytes) -> None:
    os.chmod(source + b"/sub", 0o700)
    umask = os.umask(0o022)
    try:
        copy(source, folder + b"/new/parents/copy", recursive=True)
    finally:
        os.umask(umask)
    expected = tree(source)
    del expected[b"fifo"]
    assert tree(folder + b"/new/parents/copy") == expected
    assert mode_of(folder + b"/new/parents/copy/sub") == 0o755


def test_a_tree_is_merged_into_an_existing_one(folder: bytes, source: bytes) -> None:
    os.unlink(source + b"/link")
    os.unlink(source + b"/sub/dangling")
    target = folder + b"/target"
    os.makedirs(target + b"/elsewhere")
    os.symlink(b"elsewhere", target + b"/sub")
    put(target + b"/a", b"old")
    put(target + b"/kept", b"K")
    copy(source, target, recursive=True)
    assert get(target + b"/a") == b"A"
    assert get(target + b"/kept") == b"K"
    assert get(target + b"/elsewhere/deep/c") == b"C" * 300_000


@pytest.mark.parametrize("blocked", [b"link", b"sub"])
def test_what_cannot_be_merged_is_an_error(folder: bytes, source: bytes, blocked: bytes) -> None:
    target = folder + b"/target"
    os.mkdir(target)
    put(target + b"/" + blocked)
    with pytest.raises(FileExistsError):
        copy(source, target, recursive=True)


def test_a_fifo_in_place_of_a_file_does_not_hang_a_merge(folder: bytes, source: bytes) -> None:
    os.mkdir(folder + b"/target")
    os.mkfifo(folder + b"/target/a")
    with pytest.raises(InvalidRequest, match="is a FIFO"):
        copy(source, folder + b"/target", recursive=True)


def test_files_that_are_the_same_in_both_trees_stay(folder: bytes) -> None:
    os.makedirs(folder + b"/s")
    os.makedirs(folder + b"/t")
    put(folder + b"/s/f", b"hello")
    os.link(folder + b"/s/f", folder + b"/t/f")
    copy(folder + b"/s", folder + b"/t", recursive=True)
    assert get(folder + b"/t/f") == b"hello"


def test_a_directory_needs_recursive(folder: bytes, source: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        copy(source, folder + b"/copy", recursive=False)
    assert caught.value.message == "fs/copy requires recursive: true when sourcePath is a directory"


@pytest.mark.parametrize("name", [b"source", b"source/inside/new", b"link-to-source/new"])
def test_a_directory_is_not_copied_into_itself(folder: bytes, source: bytes, name: bytes) -> None:
    os.symlink(b"source", folder + b"/link-to-source")
    before = tree(source)
    with pytest.raises(InvalidRequest) as caught:
        copy(source, folder + b"/" + name, recursive=True)
    assert caught.value.message == INSIDE
    assert tree(source) == before


def test_the_root_is_not_copied_into_itself(folder: bytes) -> None:
    with pytest.raises(InvalidRequest, match="to itself or one of its descendants"):
        copy(b"/", folder + b"/new", recursive=True)
    assert os.listdir(folder) == []


def test_a_link_back_into_the_source_ends_the_copy(folder: bytes) -> None:
    os.makedirs(folder + b"/source/a/b")
    os.makedirs(folder + b"/target")
    os.symlink(folder + b"/source/a/b", folder + b"/target/a")
    with pytest.raises(InvalidRequest) as caught:
        copy(folder + b"/source", folder + b"/target", recursive=True)
    assert caught.value.message == INSIDE


@pytest.mark.parametrize("name", [b"fifo", b"socket", b"null"])
def test_other_kinds_are_not_copied(folder: bytes, name: bytes) -> None:
    os.mkfifo(folder + b"/fifo")
    path = b"/dev/null" if name == b"null" else folder + b"/" + name
    with bound_socket(folder + b"/socket"), pytest.raises(InvalidRequest) as caught:
        copy(path, folder + b"/copy", recursive=True)
    assert caught.value.message == "fs/copy only supports regular files, directories, and symlinks"


@pytest.mark.parametrize(
    ("origin", "target", "number"),
    [
        (b"missing", b"new", errno.ENOENT),
        (b"f", b"d", errno.EISDIR),
        (b"f", b"missing/x", errno.ENOENT),
        (b"f", b"f/x", errno.ENOTDIR),
        (b"f", b"loop", errno.ELOOP),
        (b"f", b"socket", errno.ENXIO),
        (b"d", b"f", errno.EEXIST),
        (b"d", b"f/x", errno.ENOTDIR),
        (b"d", b"fifo", errno.EEXIST),
        (b"d", b"dangling", errno.EEXIST),
        (b"d", b"loop", errno.EEXIST),
    ],
)
def test_errors_of_the_system_are_passed_on(folder: bytes, origin: bytes, target: bytes, number: int) -> None:
    put(folder + b"/f")
    os.mkdir(folder + b"/d")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"nowhere", folder + b"/dangling")
    os.symlink(b"loop", folder + b"/loop")
    before = open_descriptors()
    with bound_socket(folder + b"/socket"), pytest.raises(OSError) as caught:
        copy(folder + b"/" + origin, folder + b"/" + target, recursive=True)
    assert caught.value.errno == number
    assert open_descriptors() == before


def test_what_may_not_be_read_or_written_is_refused(
    shared_folder: bytes, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    os.mkdir(shared_folder + b"/closed", 0o000)
    os.mkdir(shared_folder + b"/open")
    os.chmod(shared_folder + b"/open", 0o777)
    put(shared_folder + b"/f")
    with unprivileged():
        with pytest.raises(PermissionError):
            copy(shared_folder + b"/closed", shared_folder + b"/open/c", recursive=True)
        with pytest.raises(PermissionError):
            copy(shared_folder + b"/f", shared_folder + b"/g", recursive=True)


def test_a_very_deep_tree_is_copied_with_few_descriptors(deep_folder: bytes) -> None:
    depth = 3000
    os.mkdir(deep_folder + b"/s")
    dig(deep_folder + b"/s", depth)
    before = len(open_descriptors())
    counts: list[int] = []
    pauses: list[None] = []

    def pause() -> None:
        pauses.append(None)
        if len(pauses) % 100 == 0:
            counts.append(len(open_descriptors()))

    copy(deep_folder + b"/s", deep_folder + b"/t", recursive=True, options=CopyOptions(pause))
    assert depth_of(deep_folder + b"/t") == depth
    assert max(counts) - before < 80
    assert len(open_descriptors()) == before


def test_sizes_are_told_beforehand(folder: bytes) -> None:
    assert copied_bytes(put(folder + b"/f", b"hello")) == 5
    os.symlink(b"f", folder + b"/l")
    assert copied_bytes(folder + b"/l") == 0
    assert copied_bytes(folder) is None
    assert copied_bytes(folder + b"/missing") is None
