"""Going down and up a tree by descriptors."""

from __future__ import annotations

import errno
import os

import pytest

from execserver.files.directory_stack import OPEN_LEVELS, DirectoryStack
from tests.files.tools import dig, open_descriptors, put

DEPTH = 3 * OPEN_LEVELS


def test_a_chain_goes_deeper_than_the_levels_it_keeps_open(folder: bytes) -> None:
    dig(folder, DEPTH)
    before = len(open_descriptors())
    with DirectoryStack(folder) as chain:
        identities = [chain.identity]
        for _ in range(DEPTH):
            chain.enter(b"d")
            identities.append(chain.identity)
        assert os.listdir(chain.fd) == ["bottom"]
        assert len(open_descriptors()) - before <= OPEN_LEVELS + 2
        while len(identities) > 1:
            assert chain.identity == identities.pop()
            chain.leave()
        assert os.listdir(chain.fd) == ["d"]
    assert len(open_descriptors()) == before


def test_it_can_go_down_again_after_going_up(folder: bytes) -> None:
    dig(folder, DEPTH)
    with DirectoryStack(folder) as chain:
        for _ in range(DEPTH):
            chain.enter(b"d")
        for _ in range(DEPTH - 3):
            chain.leave()
        bottom = DEPTH - 3
        for _ in range(bottom):
            chain.enter(b"d")
        assert os.listdir(chain.fd) == ["bottom"]


def test_links_and_files_are_not_entered(folder: bytes) -> None:
    os.mkdir(folder + b"/d")
    os.symlink(b"d", folder + b"/l")
    put(folder + b"/f")
    with DirectoryStack(folder) as chain:
        for name in (b"l", b"f"):
            with pytest.raises(OSError) as caught:
                chain.enter(name)
            assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        DirectoryStack(folder + b"/l")
    with DirectoryStack(folder + b"/l", follow=True) as chain:
        assert os.listdir(chain.fd) == []


def test_the_way_back_from_behind_a_link_is_the_way_there(folder: bytes) -> None:
    os.mkdir(folder + b"/start")
    os.mkdir(folder + b"/elsewhere")
    dig(folder + b"/elsewhere", DEPTH)
    os.symlink(b"../elsewhere", folder + b"/start/l")
    with DirectoryStack(folder + b"/start") as chain:
        start = chain.identity
        chain.enter(b"l", follow=True)
        for _ in range(DEPTH):
            chain.enter(b"d", follow=True)
        for _ in range(DEPTH + 1):
            chain.leave()
        assert chain.identity == start
        assert os.listdir(chain.fd) == ["l"]


def leave_all(chain: DirectoryStack) -> None:
    for _ in range(DEPTH):
        chain.leave()


def test_a_directory_that_was_moved_away_ends_the_way(folder: bytes) -> None:
    dig(folder, DEPTH)
    os.mkdir(folder + b"/other")
    with DirectoryStack(folder) as chain:
        for _ in range(DEPTH):
            chain.enter(b"d")
        os.rename(folder + b"/d/d", folder + b"/other/d")
        with pytest.raises(OSError) as caught:
            leave_all(chain)
        assert caught.value.errno == errno.ESTALE


def test_it_knows_the_directories_it_came_through(folder: bytes) -> None:
    dig(folder, 2)
    with DirectoryStack(folder) as chain:
        top = chain.identity
        chain.enter(b"d")
        below = chain.identity
        assert chain.holds(top)
        chain.leave()
        assert not chain.holds(below)


class Counted(tuple[int, int]):
    """An identity that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


def test_what_it_holds_is_known_at_any_depth_at_once(folder: bytes) -> None:
    with DirectoryStack(folder) as chain:
        top = chain.identity
        for _ in range(200):
            os.mkdir(b"d", dir_fd=chain.fd)
            chain.enter(b"d")
        bottom = chain.identity
        assert not chain.holds(Counted((-1, -1)))
        assert chain.holds(Counted(top))
        assert chain.holds(Counted(bottom))
        assert Counted.compared <= 10
        chain.leave()
        assert not chain.holds(bottom)
        assert chain.holds(top)
