"""Listing a directory with everything below it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from execserver.files.walk import Walk, WalkOptions
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import PathUri
from tests.files.tools import put

DENIED = "Permission denied (os error 13)"


def options(
    *, depth: int = 9, directories: int = 100, entries: int = 100, follow: bool = False, prune: bool = False
) -> WalkOptions:
    return WalkOptions(depth, directories, entries, follow, prune)


class Found:
    """What a walk found, relative to the root; directories end with a slash."""

    def __init__(self, root: bytes, wanted: WalkOptions) -> None:
        walk = Walk(wanted)
        walk.run(root)
        beginning = PathUri.from_native(root).uri
        self.entries = [
            uri.removeprefix(beginning + "/") + ("/" if is_directory else "")
            for uri, is_directory in walk.entries
        ]
        self.errors = [(uri.removeprefix(beginning + "/"), text) for uri, text in walk.errors]
        self.truncated = walk.truncated


@pytest.fixture
def root(folder: bytes) -> bytes:
    """The tree of the recorded walk."""
    root = folder + b"/d"
    os.makedirs(root + b"/.hid")
    os.makedirs(root + b"/sub/deep")
    for name in (b"/.hid/h", b"/a", b"/sub/b", b"/sub/deep/c"):
        put(root + name)
    os.symlink(b"sub", root + b"/ls")
    os.symlink(b"a", root + b"/lf")
    os.mkfifo(root + b"/fifo")
    return root


def test_directories_come_level_by_level_sorted_by_name(root: bytes) -> None:
    found = Found(root, options())
    assert found.entries == [".hid/", "a", "sub/", ".hid/h", "sub/b", "sub/deep/", "sub/deep/c"]
    assert not found.errors
    assert not found.truncated


def test_names_are_sorted_by_their_bytes(folder: bytes) -> None:
    for name in ("a", "B", "é", "Z", "aa", "a.b", "a-b", "A"):
        put(folder + b"/" + name.encode())
    assert Found(folder, options()).entries == ["A", "B", "Z", "a", "a-b", "a.b", "aa", "%C3%A9"]


def test_links_to_directories_are_followed_once_to_each(root: bytes) -> None:
    os.symlink(b"..", root + b"/sub/up")
    found = Found(root, options(follow=True))
    assert found.entries == [".hid/", "a", "ls/", "sub/", ".hid/h", "ls/b", "ls/deep/", "ls/up/", "ls/deep/c"]


def test_links_to_nowhere_are_passed_over(root: bytes) -> None:
    os.symlink(b"nowhere", root + b"/dangling")
    os.symlink(b"loop", root + b"/loop")
    assert Found(root, options(follow=True, depth=0)).entries == [".hid/", "a", "ls/", "sub/"]


def test_hidden_directories_are_listed_and_not_entered_when_pruned(root: bytes) -> None:
    os.symlink(b"../sub", root + b"/sub/.up")
    found = Found(root, options(prune=True, follow=True))
    assert found.entries == [".hid/", "a", "ls/", "sub/", "ls/.up/", "ls/b", "ls/deep/", "ls/deep/c"]
    assert Found(root + b"/.hid", options(prune=True)).entries == ["h"]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(0, [".hid/", "a", "sub/"]), (1, [".hid/", "a", "sub/", ".hid/h", "sub/b", "sub/deep/"])],
)
def test_depth_zero_is_the_root_alone(root: bytes, depth: int, expected: list[str]) -> None:
    found = Found(root, options(depth=depth))
    assert found.entries == expected
    assert not found.truncated


@pytest.mark.parametrize(
    ("directories", "entries", "truncated"),
    [
        (1, [".hid/", "a", "sub/"], True),
        (2, [".hid/", "a", "sub/", ".hid/h"], True),
        (4, [".hid/", "a", "sub/", ".hid/h", "sub/b", "sub/deep/", "sub/deep/c"], False),
    ],
)
def test_the_limit_of_directories_counts_the_root(
    root: bytes, directories: int, entries: list[str], truncated: bool
) -> None:
    found = Found(root, options(directories=directories))
    assert found.entries == entries
    assert found.truncated is truncated


def test_directories_that_would_not_be_entered_do_not_count(root: bytes) -> None:
    assert not Found(root, options(depth=0, directories=1)).truncated
    os.rename(root + b"/sub", root + b"/.sub")
    assert not Found(root, options(prune=True, directories=1)).truncated
    assert not Found(root + b"/.sub", options(directories=2, follow=True)).truncated


def test_the_limit_of_entries_ends_the_walk_when_there_is_one_more(root: bytes) -> None:
    found = Found(root, options(entries=2))
    assert (found.entries, found.truncated) == ([".hid/", "a"], True)
    assert not Found(root, options(entries=7)).truncated
    assert Found(root, options(entries=6)).truncated


def test_what_is_no_directory_has_no_entries(root: bytes) -> None:
    for name in (b"/a", b"/ls", b"/lf", b"/fifo"):
        assert Found(root + name, options()).entries == []
    assert Found(root + b"/ls", options(follow=True)).entries == ["b", "deep/", "deep/c"]
    assert Found(root + b"/lf", options(follow=True)).entries == []


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("name", "number"),
    [(b"missing", errno.ENOENT), (b"dang", errno.ENOENT), (b"loop", errno.ELOOP), (b"a/x", errno.ENOTDIR)],
)
def test_a_root_that_is_not_there_is_an_error(root: bytes, name: bytes, number: int, follow: bool) -> None:
    os.symlink(b"nowhere", root + b"/dang")
    os.symlink(b"loop", root + b"/loop")
    with pytest.raises(OSError) as caught:
        Found(root + b"/" + name, options(follow=follow))
    assert caught.value.errno == number


def test_what_may_not_be_looked_at_is_told(
    shared_folder: bytes, unprivileged: Callable[[], AbstractContextManager[None]]
) -> None:
    os.makedirs(shared_folder + b"/x")
    os.makedirs(shared_folder + b"/y/sub")
    put(shared_folder + b"/y/f")
    os.symlink(b"f", shared_folder + b"/y/link")
    os.chmod(shared_folder + b"/x", 0o000)
    os.chmod(shared_folder + b"/y", 0o444)
    with unprivileged():
        found = Found(shared_folder, options())
        assert found.entries == ["x/", "y/"]
        assert found.errors == [("x", DENIED), ("y/f", DENIED), ("y/sub", DENIED)]
        # What could not be listed costs no entry, what could not be looked at does.
        assert Found(shared_folder, options(entries=4)).truncated is False
        assert Found(shared_folder, options(entries=3)).truncated is True
        with pytest.raises(PermissionError):
            Found(shared_folder + b"/x/in", options())
        walk = Walk(options())
        walk.run(shared_folder + b"/x")
        assert walk.errors == [(PathUri.from_native(shared_folder + b"/x").uri, DENIED)]


def test_names_that_are_no_utf8_are_found(folder: bytes) -> None:
    os.mkdir(folder + b"/b\xff")
    put(folder + b"/b\xff/#%")
    assert Found(folder, options()).entries == ["b%FF/", "b%FF/%23%25"]


def test_the_root_directory_can_be_walked() -> None:
    walk = Walk(options(depth=1, entries=50_000, directories=10_000))
    walk.run(b"/")
    uris = [uri for uri, _ in walk.entries]
    assert "file:///proc" in uris
    assert "file:///proc/self" not in uris  # a link
    assert "file:///proc/1" in uris


@pytest.mark.parametrize(("directories", "entries"), [(0, 1), (1, 0)])
def test_limits_of_zero_are_refused_first(directories: int, entries: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(depth=65, directories=directories, entries=entries)
    assert caught.value.message == "filesystem walk limits must be greater than zero"


@pytest.mark.parametrize(("depth", "directories", "entries"), [(65, 1, 1), (0, 10_001, 1), (0, 1, 50_001)])
def test_limits_above_the_maximum_are_refused(depth: int, directories: int, entries: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(depth=depth, directories=directories, entries=entries)
    text = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000"
    assert caught.value.message == text
    options(depth=64, directories=10_000, entries=50_000)


def test_each_directory_ends_with_a_pause(root: bytes) -> None:
    pauses: list[None] = []
    Walk(options(), lambda: pauses.append(None)).run(root)
    assert len(pauses) == 4
