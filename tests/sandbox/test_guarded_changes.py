"""Permissions and times in a sandbox, where others may have put a link into the place of a name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from execserver.sandbox.files import changes
from execserver.sandbox.files.guard import PathGuard
from execserver.sandbox.plan import SandboxPlan
from tests.files.tools import put

LONG_AGO_NS = 10**18

Change = Callable[[PathGuard, bytes, bool], None]

CHANGES: dict[str, Change] = {
    "chmod": lambda guard, path, links: changes.chmod(guard, path, 0o640, links=links),
    "touch": lambda guard, path, links: changes.touch(guard, path, (LONG_AGO_NS, LONG_AGO_NS), links=links),
}


@pytest.fixture
def guard() -> Iterator[PathGuard]:
    guard = PathGuard(SandboxPlan("changes"))
    yield guard
    os.close(guard.root)


def state(path: bytes) -> tuple[int, int]:
    status = os.stat(path)
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns


@pytest.mark.parametrize("act", CHANGES.values(), ids=CHANGES)
def test_links_are_followed_only_where_they_are_wanted(
    act: Change, guard: PathGuard, tmp_path: os.PathLike[str]
) -> None:
    folder = os.path.realpath(os.fsencode(tmp_path))
    target, link = folder + b"/target", folder + b"/link"
    put(target)
    os.chmod(target, 0o600)
    before = state(target)
    os.symlink(b"target", link)
    with suppress(OSError):  # the link's own time may change, its permissions cannot
        act(guard, link, False)
    assert state(target) == before
    act(guard, link, True)
    assert state(target) != before


@pytest.mark.parametrize("act", CHANGES.values(), ids=CHANGES)
def test_a_linked_folder_is_no_way_where_no_links_are_wanted(
    act: Change, guard: PathGuard, tmp_path: os.PathLike[str]
) -> None:
    folder = os.path.realpath(os.fsencode(tmp_path))
    os.mkdir(folder + b"/real")
    put(folder + b"/real/file")
    before = state(folder + b"/real/file")
    os.symlink(b"real", folder + b"/way")
    with pytest.raises(OSError, match="directory"):
        act(guard, folder + b"/way/file", False)
    assert state(folder + b"/real/file") == before
    act(guard, folder + b"/real/file", False)
    assert state(folder + b"/real/file") != before
