"""Names below one folder of this machine, whatever the names and the links there say.

Every step goes by descriptors and follows no link, so that neither `..`, an absolute name, nor a link that
came before leads elsewhere.
"""

from __future__ import annotations

import os
import stat
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST: Final = 256
Path = tuple[bytes, ...]


class BadName(ValueError):
    """A name that could lead elsewhere."""


def parts(name: bytes) -> Path:
    """Return the components of a relative name, without `.`.  Raises BadName."""
    found = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if name.startswith(b"/") or b".." in found or b"\0" in name or len(found) > DEEPEST:
        raise BadName(name)
    return found


class Below:
    """Owns the descriptor of the folder until `close`."""

    def __init__(self, folder: bytes | str) -> None:
        """Open the folder, which may be given by a link.  Raises OSError."""
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def opened(self, path: Path, *, make: bool = True) -> int:
        """Return a descriptor of a folder, which the caller closes; with `make` what is missing is made."""
        folder = os.dup(self._root)
        try:
            for part in path:
                below = _entered(folder, part, make=make)
                os.close(folder)
                folder = below
        except BaseException:
            os.close(folder)
            raise
        return folder

    def remove(self, path: Path) -> None:
        """Remove a file, a link itself or an empty folder; what is not there is fine.  Raises OSError."""
        try:
            parent = self.opened(path[:-1], make=False)
        except FileNotFoundError:
            return
        try:
            if stat.S_ISDIR(os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                os.rmdir(path[-1], dir_fd=parent)
            else:
                os.unlink(path[-1], dir_fd=parent)
        except FileNotFoundError:
            pass
        finally:
            os.close(parent)

    def stamp(self, path: Path, mode: int, modified_ns: int | None = None) -> None:
        """Set permissions and time of a file or folder; a link is an error.  Raises OSError."""
        parent = self.opened(path[:-1], make=False)
        try:
            # By /proc: what may not be opened for reading can still be changed by its owner.
            fd = os.open(path[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                os.chmod(b"/proc/self/fd/%d" % fd, mode)
                if modified_ns is not None:
                    os.utime(b"/proc/self/fd/%d" % fd, ns=(modified_ns, modified_ns))
            finally:
                os.close(fd)
        finally:
            os.close(parent)

    def close(self) -> None:
        """Release the folder.  May be called again."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


def _entered(folder: int, part: bytes, *, make: bool) -> int:
    try:
        return os.open(part, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(part, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    return os.open(part, FOLDER, dir_fd=folder)
