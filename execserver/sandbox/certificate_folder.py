"""The folder of the certificates that processes with masked credentials trust, as descriptor.

Who can change what is in it, or put another folder in its place, decides what these processes trust.  So it
must be this user's alone, and no symlink: it is opened below its parent, and all work goes by the descriptor.
Sandboxes cannot write to it (`own_files`).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o755  # there is no secret in it
_OTHERS = 0o022


class FolderRefused(Exception):
    """The folder is not private; the message says why, and what to do about it."""


def opened(folder: bytes, *, make: bool = True) -> int:
    """Return a descriptor of the folder, a path without symlinks; it is made where it is missing.

    Raises FolderRefused and OSError.
    """
    parent, name = os.path.split(folder)
    if make:
        os.makedirs(parent, _MODE, exist_ok=True)
    above = _directory(parent, parent)
    try:
        # Root's may be the home of this user; in a folder like /tmp nobody can replace what is another's.
        _check(above, parent, {0, os.geteuid()}, sticky=True)
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, _MODE, dir_fd=above)
        found = _directory(name, folder, above)
    finally:
        os.close(above)
    try:
        _check(found, folder, {os.geteuid()})
    except FolderRefused:
        os.close(found)
        raise
    return found


def _directory(path: bytes, shown: bytes, above: int | None = None) -> int:
    try:
        return os.open(path, _DIRECTORY, dir_fd=above)
    except NotADirectoryError:
        raise FolderRefused(f"{os.fsdecode(shown)} is a symlink or no folder; remove it") from None


def _check(fd: int, path: bytes, owners: set[int], *, sticky: bool = False) -> None:
    found = os.fstat(fd)
    if found.st_uid not in owners:
        raise FolderRefused(f"{os.fsdecode(path)} belongs to another user")
    if found.st_mode & _OTHERS and not (sticky and found.st_mode & stat.S_ISVTX):
        raise FolderRefused(f"others may write to {os.fsdecode(path)}; chmod go-w")
