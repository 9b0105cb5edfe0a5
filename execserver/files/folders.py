"""Folders that are watched: opened without following a symlink, and listed by their descriptor."""

from __future__ import annotations

import os

from execserver.files.no_symlinks import ResolvedName
from execserver.files.yielding import no_pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.yielding import Pause

# O_NONBLOCK: a name that becomes a FIFO meanwhile must not hang the open.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AT_ONCE = 1000  # names between two pauses

Name = tuple[bytes, bool]  # and whether it is a directory


def open_folder(path: bytes) -> int:
    """Open a directory for listing; the caller owns the descriptor.  A symlink is ENOTDIR."""
    with ResolvedName(path) as resolved:
        return os.open(resolved.name, _FOLDER, dir_fd=resolved.fd)


def names_in(
    fd: int, most: int, only_folders: bool = False, pause: Pause = no_pause
) -> tuple[list[Name], bool]:
    """Return the names in an open directory, at most so many, and whether these are all.

    With `only_folders` other names are not among them.  Symlinks are no directories.  Raises OSError.
    """
    found: list[Name] = []
    with os.scandir(fd) as entries:
        for looked_at, entry in enumerate(entries, 1):
            if not looked_at % _AT_ONCE:
                pause()
            is_directory = entry.is_dir(follow_symlinks=False)
            if only_folders and not is_directory:
                continue
            if len(found) >= most:
                return found, False
            found.append((os.fsencode(entry.name), is_directory))
    return found, True
