"""Removing files and trees."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from execserver.files import remove as module
from execserver.files.directory_stack import DirectoryStack
from execserver.files.remove import remove, removes_a_tree
from tests.files.tools import bound_socket, dig, get, open_descriptors, put


def gone(path: bytes) -> bool:
    return not os.path.lexists(path)


def make_tree(root: bytes) -> None:
    os.makedirs(root + b"/sub/deep")
    os.makedirs(root + b"/bad\xff")
    put(root + b"/sub/f")
    put(root + b"/sub/deep/f")
    put(root + b"/bad\xff/x\xfe")
    os.mkfifo(root + b"/fifo")
    os.symlink(b"..", root + b"/sub/up")
    os.symlink(b"nowhere", root + b"/dangling")


def test_every_kind_of_file_is_removed(folder: bytes) -> None:
    put(folder + b"/f")
    os.mkfifo(folder + b"/fifo")
    os.symlink(b"nowhere", folder + b"/dangling")
    with bound_socket(folder + b"/s"):
        for name in (b"/f", b"/fifo", b"/dangling", b"/s"):
            remove(folder + name, recursive=False, force=False)
            assert gone(folder + name)


def test_a_link_is_removed_and_not_what_it_leads_to(folder: bytes) -> None:
    os.mkdir(folder + b"/d")
    put(folder + b"/d/f")
    os.symlink(b"d", folder + b"/l")
    remove(folder + b"/l", recursive=True, force=True)
    assert gone(folder + b"/l")
    assert os.path.exists(folder + b"/d/f")


def test_a_tree_is_removed_without_leaving_through_links(folder: bytes) -> None:
    put(folder + b"/outside", b"kept")
    make_tree(folder + b"/t")
    os.symlink(folder, folder + b"/t/sub/out")
    remove(folder + b"/t", recursive=True, force=False)
    assert os.listdir(folder) == [b"outside"]
    assert get(folder + b"/outside") == b"kept"


def test_without_recursive_only_empty_directories_are_removed(folder: bytes) -> None:
    os.makedirs(folder + b"/d/sub")
    with pytest.raises(OSError) as caught:
        remove(folder + b"/d", recursive=False, force=True)
    assert caught.value.errno == errno.ENOTEMPTY
    remove(folder + b"/d/sub", recursive=False, force=True)
    assert os.listdir(folder + b"/d") == []


def test_force_covers_what_is_missing_and_nothing_else(folder: bytes) -> None:
    put(folder + b"/f")
    remove(folder + b"/missing/x", recursive=True, force=True)
    with pytest.raises(FileNotFoundError):
        remove(folder + b"/missing", recursive=True, force=False)
    with pytest.raises(NotADirectoryError):
        remove(folder + b"/f/x", recursive=True, force=True)


def test_the_root_directory_is_refused_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is to be lost here by a mistake.
    monkeypatch.delattr(module.TreeRemoval, "run")
    for recursive in (True, False):
        with pytest.raises(OSError) as caught:
            remove(b"/", recursive, force=True)
        assert caught.value.errno == errno.EBUSY


def test_a_very_deep_tree_is_removed_with_few_descriptors(deep_folder: bytes) -> None:
    depth = 4000  # beyond the recursion limit, and a path three times as long as the kernel takes
    os.mkdir(deep_folder + b"/t")
    dig(deep_folder + b"/t", depth)
    most = 0

    def pause() -> None:
        nonlocal most
        most = max(most, len(open_descriptors()))

    before = len(open_descriptors())
    remove(deep_folder + b"/t", recursive=True, force=False, pause=pause)
    assert gone(deep_folder + b"/t")
    assert 0 < most - before < 50
    assert len(open_descriptors()) == before


def test_removal_pauses_between_batches(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 3)
    os.mkdir(folder + b"/t")
    for number in range(8):
        put(folder + b"/t/%d" % number)
    pauses: list[None] = []
    remove(folder + b"/t", recursive=True, force=False, pause=lambda: pauses.append(None))
    assert len(pauses) == 3


def test_names_added_meanwhile_are_removed_too(folder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(folder + b"/t")
    real = os.rmdir
    added = iter([b"/t/sub/late", b"/t/late"])

    def rmdir(path: bytes, *, dir_fd: int | None = None) -> None:
        if late := next(added, None):
            put(folder + late)
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    remove(folder + b"/t", recursive=True, force=False)
    assert gone(folder + b"/t")


def test_a_directory_that_is_filled_for_ever_is_given_up(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(folder + b"/t")
    real = os.rmdir

    def rmdir(path: bytes, *, dir_fd: int | None = None) -> None:
        put(folder + b"/t/more")
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    with pytest.raises(OSError) as caught:
        remove(folder + b"/t", recursive=True, force=False)
    assert caught.value.errno == errno.ENOTEMPTY


def test_a_directory_swapped_for_a_link_is_not_entered(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.makedirs(folder + b"/t/sub")
    os.mkdir(folder + b"/outside")
    put(folder + b"/outside/f", b"kept")
    real = DirectoryStack.enter

    def enter(chain: DirectoryStack, name: bytes, follow: bool = False) -> None:
        if name == b"sub" and not os.path.islink(folder + b"/t/sub"):
            os.rename(folder + b"/t/sub", folder + b"/moved")
            os.symlink(folder + b"/outside", folder + b"/t/sub")
        real(chain, name, follow)

    monkeypatch.setattr(DirectoryStack, "enter", enter)
    remove(folder + b"/t", recursive=True, force=False)
    assert gone(folder + b"/t")
    assert get(folder + b"/outside/f") == b"kept"


def test_what_may_not_be_removed_is_an_error(
    shared_folder: bytes, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    os.makedirs(shared_folder + b"/t/sub")
    put(shared_folder + b"/t/f")
    with unprivileged():
        for name in (b"/t", b"/t/f"):
            with pytest.raises(PermissionError):
                remove(shared_folder + name, recursive=True, force=True)
    assert os.path.exists(shared_folder + b"/t/f")


def test_names_of_the_kernel_are_refused() -> None:
    with pytest.raises(PermissionError) as caught:
        remove(b"/proc/1", recursive=True, force=True)
    assert caught.value.errno == errno.EPERM


def test_only_directories_to_be_emptied_count_as_trees(folder: bytes) -> None:
    os.symlink(folder, folder + b"/l")
    assert removes_a_tree(folder, recursive=True)
    assert not removes_a_tree(folder, recursive=False)
    assert not removes_a_tree(folder + b"/l", recursive=True)
    assert not removes_a_tree(folder + b"/missing", recursive=True)
