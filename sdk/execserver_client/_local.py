"""A tree of this machine, read in bounded pieces: every function here blocks, and is meant for a thread.

Links in the tree are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from execserver.box.shown import shown
from execserver.protocol.batches import FsNodeKind, FsWriteEntry

LARGE: Final = 512 * 1024
"""A file of more goes by itself, in pieces."""

PERMISSIONS: Final = 0o777
_WRITABLE: Final = 0o700  # a folder must be, while it is filled


class Changed(Exception):
    """A file changes while it is read, or is none any more."""


class Found(NamedTuple):
    """One name below the top: of a folder, a file or a link with its text."""

    name: bytes
    kind: FsNodeKind
    size: int
    mode: int
    modified_ns: int
    target: bytes = b""

    def entry(self, content: bytes | None = None) -> FsWriteEntry:
        """Return what makes the same on a box; for a folder with permissions that let it be filled."""
        if self.kind is FsNodeKind.SYMLINK:
            return FsWriteEntry(
                name=self.name, kind=self.kind, target=self.target, modified_at_ns=self.modified_ns
            )
        if self.kind is FsNodeKind.DIRECTORY:
            return FsWriteEntry(name=self.name, kind=self.kind, mode=self.mode | _WRITABLE)
        return FsWriteEntry(
            name=self.name,
            kind=self.kind,
            mode=self.mode,
            modified_at_ns=self.modified_ns,
            content=content,
        )

    def stamp(self) -> FsWriteEntry:
        """Return what gives a folder its permissions and time once it is filled."""
        return FsWriteEntry(name=self.name, kind=self.kind, mode=self.mode, modified_at_ns=self.modified_ns)


Tell = Callable[[str, str], None]
"""Takes a name and why it cannot be copied."""


def walk(top: bytes, fail: Tell, leave_out: Callable[[str], None]) -> Generator[Found]:
    """Yield what is below a folder, each folder before what is in it.  Raises OSError for the top."""
    pending = [b""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(top, folder) if folder else top) as names:
                for each in names:
                    found = _found(folder + b"/" + each.name if folder else each.name, each, fail, leave_out)
                    if found is not None:
                        yield found
                        if found.kind is FsNodeKind.DIRECTORY:
                            pending.append(found.name)
        except OSError as error:
            if not folder:
                raise
            fail(shown(folder, 300), error.strerror or str(error))


def _found(
    name: bytes, entry: os.DirEntry[bytes], fail: Tell, leave_out: Callable[[str], None]
) -> Found | None:
    try:
        found = node(name, entry.path, entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None  # gone meanwhile, as if it had never been there
    except OSError as error:
        fail(shown(name, 300), error.strerror or str(error))
        return None
    if found is None:
        leave_out(f"{shown(name, 300)} is no file, folder or link")
    return found


def node(name: bytes, path: bytes, status: os.stat_result) -> Found | None:
    """Return what a status tells under a name; None for devices, FIFOs and sockets.  Raises OSError."""
    mode, modified_ns = stat.S_IMODE(status.st_mode) & PERMISSIONS, status.st_mtime_ns
    if stat.S_ISREG(status.st_mode):
        return Found(name, FsNodeKind.FILE, status.st_size, mode, modified_ns)
    if stat.S_ISDIR(status.st_mode):
        return Found(name, FsNodeKind.DIRECTORY, 0, mode, modified_ns)
    if stat.S_ISLNK(status.st_mode):
        return Found(name, FsNodeKind.SYMLINK, 0, mode, modified_ns, os.readlink(path))
    return None


def some(names: Generator[Found], most: int) -> list[Found]:
    """Return the next names, at most so many; none at the end."""
    return list(islice(names, most))


def top(path: bytes) -> Found | None:
    """Return what a path leads to, without a name.  Raises OSError."""
    return node(b"", path, os.stat(path))


def opened(path: bytes, *, follow: bool) -> int:
    """Return a descriptor of a regular file, which the caller closes.  Raises OSError, Changed."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Changed("it is no regular file any more")
    return fd


def small_files(top: bytes, names: Sequence[Found], fail: Tell) -> list[FsWriteEntry]:
    """Return entries with the whole content of files, and of links; what cannot be read is told."""
    entries = []
    for found in names:
        try:
            entries.append(_small(top, found))
        except FileNotFoundError:
            pass  # gone meanwhile, as if it had never been there
        except OSError as error:
            fail(shown(found.name, 300), error.strerror or str(error))
        except Changed as error:
            fail(shown(found.name, 300), str(error))
    return entries


def _small(top: bytes, found: Found) -> FsWriteEntry:
    if found.kind is not FsNodeKind.FILE:
        return found.entry()
    fd = opened(os.path.join(top, found.name), follow=False)
    try:
        return found.entry(whole(fd, 2 * LARGE))
    finally:
        os.close(fd)


def whole(fd: int, most: int) -> bytes:
    """Return the content of an open file.  Raises Changed if it changes meanwhile or is longer."""
    before = os.fstat(fd)
    data = os.pread(fd, most + 1, 0)
    if len(data) > most or len(data) != before.st_size or identity(before) != identity(os.fstat(fd)):
        raise Changed("it changes while it is read")
    return data


def piece(fd: int, expected: tuple[int, int], begin: int, size: int) -> bytes:
    """Return a part of an open file.  Raises Changed unless the file is as it was."""
    data = os.pread(fd, size, begin)
    if len(data) < size or identity(os.fstat(fd)) != expected:
        raise Changed("it changes while it is read")
    return data


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what tells whether a file has changed: size and time."""
    return status.st_size, status.st_mtime_ns
