"""Which directories tell that a missing path has come to be (wire contract, section 12).

A missing path hangs on the directories that exist on the way to it: in each of them on one name, the next
component.  Whatever happens to that name may change what the path means.
"""

from __future__ import annotations

import errno
import os
import stat

MAX_MISSING = 64  # the contract's
MAX_DIRECTORIES = 1024  # of one request; each one costs a watch of the kernel


class Unwatchable(Exception):
    """A path is there, `present` is not, or the way to one of them is not made of directories."""


class Places:
    """What to watch: names in directories, and the object that is present."""

    __slots__ = ("directories", "present")

    def __init__(self, missing: list[bytes], present: bytes | None) -> None:
        """Look at every path, without following symlinks.  Raises Unwatchable."""
        if not 1 <= len(missing) <= MAX_MISSING:
            raise Unwatchable
        self.directories: dict[bytes, set[bytes]] = {}
        self.present = present
        for path in missing:
            if self._exists(path):
                raise Unwatchable
        if present is not None and not self._exists(present):
            raise Unwatchable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and (self.directories, self.present) == (
            other.directories,
            other.present,
        )

    __hash__ = None  # type: ignore[assignment]

    def _exists(self, path: bytes) -> bool:
        """Note the directories on the way to a path; return whether something is at its end."""
        parts = [part for part in path.split(b"/") if part]
        directory = b"/"
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            self._note(directory, part)
            child = os.path.join(directory, part)
            if left and child in self.directories:
                directory = child
                continue
            mode = _mode(child)
            if mode is None:
                return False
            if stat.S_ISLNK(mode) or (left and not stat.S_ISDIR(mode)):
                raise Unwatchable
            directory = child
        return True

    def _note(self, directory: bytes, name: bytes) -> None:
        names = self.directories.get(directory)
        if names is None:
            if len(self.directories) >= MAX_DIRECTORIES:
                raise Unwatchable
            names = self.directories[directory] = set()
        names.add(name)


def _mode(path: bytes) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise Unwatchable from None
