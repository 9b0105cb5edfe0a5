"""A tree of this machine: what is in it, and its files' hashes and contents.  Links are not followed.

Reading lets other greenlets run, so that the connection stays alive.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final

import gevent

from execserver.box.shown import shown
from execserver.box.trees.nodes import MAX_NODES, Excluded, Kind, Node, TooLarge, Tree, is_fresh, is_part
from execserver.box.trees.others import Others

BLOCK: Final = 1024 * 1024
_TURN: Final = 2000  # names between two chances for others


class Changed(Exception):
    """A file changes while it is read."""


def node_of(status: os.stat_result, target: bytes = b"") -> Node | None:
    """Return the node of a status; None for devices, FIFOs and sockets."""
    mode, modified_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if stat.S_ISREG(status.st_mode):
        return Node(Kind.FILE, status.st_size, mode, modified_ns)
    if stat.S_ISDIR(status.st_mode):
        return Node(Kind.FOLDER, 0, mode, modified_ns)
    return Node(Kind.LINK, 0, mode, modified_ns, target) if stat.S_ISLNK(status.st_mode) else None


class Lister:
    """Lists trees; `is_whole` is False once something could not be read, which is told to `say`."""

    def __init__(
        self, excluded: Excluded, say: Callable[[str], None], others: Others, *, parts: bool
    ) -> None:
        """With `parts` the parts of files are listed, too, as they are where something is written.

        Devices, FIFOs and sockets are counted in `others`.
        """
        self._others = others
        self._excluded = excluded
        self._say = say
        self._parts = parts
        self.is_whole = True

    def tree(self, top: bytes) -> Tree:
        """Return a tree, empty if there is nothing.  Raises OSError for the top, and TooLarge."""
        found: Tree = {}
        try:
            status = os.lstat(top)
        except FileNotFoundError:
            return found
        node = node_of(status, _link(top, status))
        if node is not None:
            found[b""] = node
        if node is not None and node.kind is Kind.FOLDER:
            pending = [b""]
            while pending:
                pending += self._folder(top, pending.pop(), found)
        return found

    def _folder(self, top: bytes, folder: bytes, found: Tree) -> list[bytes]:
        below = []
        try:
            with os.scandir(os.path.join(top, folder) if folder else top) as entries:
                for entry in entries:
                    name = folder + b"/" + entry.name if folder else entry.name
                    if self._is_left_out(name):
                        continue
                    node = self._node(entry)
                    if node is not None:
                        found[name] = node
                        if node.kind is Kind.FOLDER:
                            below.append(name)
                        self._count(found)
        except OSError as error:
            if not folder:
                raise
            self._left_out(os.path.join(top, folder), error.strerror or str(error))
        return below

    def _is_left_out(self, name: bytes) -> bool:
        return is_fresh(name) or (not self._parts and is_part(name)) or self._excluded.here(name)

    def _node(self, entry: os.DirEntry[bytes]) -> Node | None:
        try:
            status = entry.stat(follow_symlinks=False)
            node = node_of(status, _link(entry.path, status))
            if node is None:
                self._others.add(entry.path)
            return node
        except FileNotFoundError:
            return None  # gone meanwhile
        except OSError as error:
            self._left_out(entry.path, error.strerror or str(error))
            return None

    def _left_out(self, path: bytes, why: str) -> None:
        self.is_whole = False
        self._say(f"left out: {shown(path, 300)}: {why}")

    @staticmethod
    def _count(found: Tree) -> None:
        if len(found) > MAX_NODES:
            raise TooLarge(f"more than {MAX_NODES} names")
        if len(found) % _TURN == 0:
            gevent.sleep(0)


def _link(path: bytes, status: os.stat_result) -> bytes:
    return os.readlink(path) if stat.S_ISLNK(status.st_mode) else b""


def opened(path: bytes) -> int:
    """Return a descriptor of a regular file, which the caller closes.  Raises OSError and Changed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Changed("it is no regular file any more")
    return fd


def content(path: bytes, most: int) -> tuple[bytes, Node]:
    """Return a file's whole content, and its node.  Raises OSError; Changed if it changes, or is longer."""
    fd = opened(path)
    try:
        before = os.fstat(fd)
        data = os.pread(fd, most + 1, 0)
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if identity(before) != identity(after) or len(data) != after.st_size:
        raise Changed("it changes while it is read")
    node = node_of(after)
    assert node is not None
    return data, node


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what tells whether a file has changed."""
    return status.st_size, status.st_mtime_ns


def digest(fd: int, offset: int, length: int) -> str:
    """Return the SHA-256 of a part of an open file, in hexadecimal digits.  Raises OSError."""
    import hashlib  # late: most copies compare nothing

    found, end = hashlib.sha256(), offset + length
    while offset < end:
        block = os.pread(fd, min(BLOCK, end - offset), offset)
        if not block:
            break
        found.update(block)
        offset += len(block)
        gevent.sleep(0)
    return found.hexdigest()
