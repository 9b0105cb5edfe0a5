"""Writes the entries of an archive below one folder, whatever their names and links say.

Every step goes by `below`, so that nothing leads elsewhere.  Files become visible whole, by a rename.
Devices, FIFOs and sockets are left out; set-id bits are not taken over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from execserver.box.shown import shown
from execserver.box.trees import tar
from execserver.box.trees.below import BadName, Below, Path, parts
from execserver.box.trees.tar import BadArchive, Entry
from execserver.files.change import take_place

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODES: Final = 0o777
_OVERHEAD: Final = 256
_MAX_FOLDER_NAMES: Final = 64 * 1024 * 1024  # bytes of names of folders, which are held until the end


class Unpacker:
    """Owns the descriptor of the folder and of the file that is being written.

    The first component of every name must be `expected`; it becomes `name` below the folder.  Without
    `expected` all names are those of what is in `name`.  Several may write to one folder.
    """

    def __init__(
        self, folder: bytes | str, expected: bytes | None, name: bytes, say: Callable[[str], None]
    ) -> None:
        """Open the folder.  Raises OSError."""
        self._below = Below(folder)
        # The name under which something is made before it gets its own; it means nothing to anybody else.
        self._fresh = b".execserver-" + os.urandom(8).hex().encode()
        self._expected = expected
        self._name = name
        self._say = say
        self._file: int | None = None
        self._entry: Entry | None = None
        self._left = 0
        self._held = 0
        self._folders: list[tuple[Path, int, int]] = []

    def take(self, item: Entry | bytes) -> None:
        """Write an entry or a piece of its content.  Raises BadArchive, OSError."""
        if isinstance(item, bytes):
            self._write(item)
            return
        path = self._path(item)
        if item.kind == tar.OTHER:
            self._say(f"left out: {shown(item.name, 200)} is no file, folder or link")
        elif item.kind == tar.DIRECTORY:
            os.close(self._below.opened(path))
            self._held += len(item.name) + _OVERHEAD
            if self._held > _MAX_FOLDER_NAMES:
                raise BadArchive("it has too many folders")
            self._folders.append((path, item.mode, item.modified_ns))
        elif not path[1:] and item.kind != tar.FILE and item.kind != tar.SYMLINK:
            raise BadArchive("a link stands for the whole")
        else:
            self._make(path, item)

    def finish(self) -> None:
        """Give the folders their modes and times, the deepest first.  Raises OSError, BadArchive if cut."""
        if self._file is not None:
            raise BadArchive("it ends in the middle of a file")
        for path, mode, modified_ns in reversed(self._folders):
            folder = self._below.opened(path)
            try:
                os.fchmod(folder, mode & _MODES)
                os.utime(folder, ns=(modified_ns, modified_ns))
            finally:
                os.close(folder)

    def close(self) -> None:
        """Release everything; a file that is not whole is removed."""
        try:
            self.abandon()
        finally:
            self._below.close()

    def abandon(self) -> None:
        """Remove a file that is not whole; others may follow."""
        if self._file is None or self._entry is None:
            return
        path = self._path(self._entry)
        os.close(self._file)
        self._file = self._entry = None
        parent = self._below.opened(path[:-1])
        try:
            os.unlink(self._fresh, dir_fd=parent)
        finally:
            os.close(parent)

    def _path(self, entry: Entry) -> Path:
        try:
            found = parts(entry.name)
            if self._expected is None and (found or entry.kind == tar.DIRECTORY):
                return (self._name, *found)
        except BadName:
            found = ()
        if not found or found[0] != self._expected:
            raise BadArchive(f"the box sent {shown(entry.name, 200)}, which nobody asked for")
        return (self._name, *found[1:])

    def _make(self, path: Path, entry: Entry) -> None:
        parent = self._below.opened(path[:-1])
        try:
            if entry.kind == tar.FILE:
                self._begin(parent, path, entry)
                return
            if b"\0" in entry.target:
                raise BadArchive(f"the link {shown(entry.name, 200)} has a target with a NUL byte")
            if entry.kind == tar.SYMLINK:
                os.symlink(entry.target, self._fresh, dir_fd=parent)
            else:
                self._link(entry, parent)
            self._place(path[-1], parent)
            if entry.kind == tar.SYMLINK:
                times = (entry.modified_ns, entry.modified_ns)
                os.utime(path[-1], ns=times, dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(parent)

    def _link(self, entry: Entry, parent: int) -> None:
        target = self._path(entry._replace(name=entry.target))
        other = self._below.opened(target[:-1])
        try:
            os.link(target[-1], self._fresh, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(other)

    def _begin(self, parent: int, path: Path, entry: Entry) -> None:
        self._file = os.open(self._fresh, _NEW, 0o600, dir_fd=parent)
        self._entry, self._left = entry, entry.size
        if not self._left:
            self._end(parent, path)

    def _write(self, data: bytes) -> None:
        if self._file is None or self._entry is None or len(data) > self._left:
            raise BadArchive("content without a file")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._left -= len(data)
        if not self._left:
            path = self._path(self._entry)
            parent = self._below.opened(path[:-1])
            try:
                self._end(parent, path)
            finally:
                os.close(parent)

    def _end(self, parent: int, path: tuple[bytes, ...]) -> None:
        assert self._file is not None
        assert self._entry is not None
        os.fchmod(self._file, self._entry.mode & _MODES)
        os.utime(self._file, ns=(self._entry.modified_ns, self._entry.modified_ns))
        os.close(self._file)
        self._file = None
        self._entry = None
        self._place(path[-1], parent)

    def _place(self, name: bytes, parent: int) -> None:
        """Give what was made its name, in the place of a file or link that had it."""
        try:
            take_place((self._fresh, parent), (name, parent))
        except OSError:
            os.unlink(self._fresh, dir_fd=parent)
            raise
