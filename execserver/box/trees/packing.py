"""A file or a tree of this machine as an archive, piece by piece.  Links are not followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from execserver.box.shown import shown
from execserver.box.trees import tar
from execserver.box.trees.tar import Entry

_PIECE: Final = 256 * 1024


def size_of(path: bytes) -> int:
    """Return how many bytes of content a file or tree has.  Raises OSError for the top only."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                below = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            total += below.st_size if stat.S_ISREG(below.st_mode) else 0
    return total


def packed(path: bytes, name: bytes, say: Callable[[str], None]) -> Iterator[bytes]:
    """Yield an archive of what is at `path`, called `name` in it, without the end of the archive.

    What cannot be read is told to `say` and left out; a file that shrinks meanwhile is filled with
    zeros, which is told, too.  Raises OSError for the top only.
    """
    found = os.lstat(path)
    yield from _one(path, name, found, say)
    if not stat.S_ISDIR(found.st_mode):
        return
    for below in sorted(os.listdir(path)):
        try:
            yield from packed(os.path.join(path, below), name + b"/" + below, say)
        except OSError as error:
            say(f"left out: {shown(os.path.join(path, below), 300)}: {error.strerror}")


def _one(path: bytes, name: bytes, found: os.stat_result, say: Callable[[str], None]) -> Iterator[bytes]:
    entry = Entry(name, tar.FILE, 0, stat.S_IMODE(found.st_mode), found.st_mtime_ns)
    if stat.S_ISDIR(found.st_mode):
        yield tar.header(entry._replace(kind=tar.DIRECTORY, name=name + b"/"))
    elif stat.S_ISLNK(found.st_mode):
        yield tar.header(entry._replace(kind=tar.SYMLINK, target=os.readlink(path)))
    elif stat.S_ISREG(found.st_mode):
        yield from _content(path, entry, say)
    else:
        say(f"left out: {shown(path, 300)} is no file, folder or link")


def _content(path: bytes, entry: Entry, say: Callable[[str], None]) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        yield tar.header(entry._replace(size=size))
        left = size
        while left:
            data = file.read(min(left, _PIECE))
            if not data:
                say(f"{shown(path, 300)} became shorter meanwhile")
                data = bytes(min(left, _PIECE))
            left -= len(data)
            yield data
    yield bytes(tar.padding(size))
