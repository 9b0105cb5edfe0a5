"""What is at a path: kind, size, times, resolved path, the names in a directory; and making directories."""

from __future__ import annotations

import os
from itertools import islice

from execserver.files.yielding import no_pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.yielding import Pause

_KIND = 0o170000
_LINK = 0o120000
_DIRECTORY = 0o040000
_REGULAR = 0o100000

_NEW_DIRECTORY_MODE = 0o777
_BATCH = 2048  # directory entries between two pauses, about a millisecond


def get_metadata(path: bytes) -> tuple[bool, bool, bool, int, int]:
    """Return is_directory, is_file, is_symlink, size in bytes, time of modification in ms.

    Only `is_symlink` is about the path itself, all else about what it leads to.  A time before 1970 is 0.
    """
    status = os.lstat(path)
    if status.st_mode & _KIND == _LINK:
        return described(os.stat(path), is_link=True)
    return described(status, is_link=False)


def described(status: os.stat_result, is_link: bool) -> tuple[bool, bool, bool, int, int]:
    """Return what `get_metadata` returns, from the status of what the path leads to."""
    kind = status.st_mode & _KIND
    modified_ms = status.st_mtime_ns // 1_000_000
    if modified_ms < 0:
        modified_ms = 0
    return kind == _DIRECTORY, kind == _REGULAR, is_link, status.st_size, modified_ms


def canonicalize(path: bytes) -> bytes:
    """Return the resolved path; it must exist."""
    # The kernel resolves the whole path in one call; `realpath` needs a call for each part.
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        real = os.readlink(b"/proc/self/fd/%d" % fd)
        # The kernel's text is no usable path if the file was just removed or lies outside our root.
        if os.path.samestat(os.lstat(real), os.fstat(fd)):
            return real
    except OSError:
        pass  # no /proc, or not that path
    finally:
        os.close(fd)
    return os.path.realpath(path, strict=True)


def read_directory(path: bytes, pause: Pause = no_pause) -> list[tuple[str, bool, bool]]:
    """Return name, is_directory, is_file of every entry, in the directory's order.

    A symlink has the kind of its target; symlinks that lead nowhere are omitted.  Bytes of a name that are
    not UTF-8 become U+FFFD.
    """
    found: list[tuple[str, bool, bool]] = []
    with os.scandir(path) as entries:
        while batch := list(islice(entries, _BATCH)):
            for entry in batch:
                # From the directory itself (d_type): no `stat` for files and directories.
                if entry.is_file(follow_symlinks=False):
                    found.append((entry.name.decode("utf-8", "replace"), False, True))
                elif entry.is_dir(follow_symlinks=False):
                    found.append((entry.name.decode("utf-8", "replace"), True, False))
                elif (kind := _kind_behind(entry)) is not None:
                    name = entry.name.decode("utf-8", "replace")
                    found.append((name, kind == _DIRECTORY, kind == _REGULAR))
            if len(batch) == _BATCH:
                pause()
    return found


def _kind_behind(entry: os.DirEntry[bytes]) -> int | None:
    """Return the kind of what an entry leads to, or None if that is unknown."""
    try:
        return entry.stat().st_mode & _KIND
    except OSError:
        return None


def create_directory(path: bytes, recursive: bool) -> None:
    """Make a directory; with `recursive` also its parents, and an existing one is no error."""
    if not recursive:
        os.mkdir(path, _NEW_DIRECTORY_MODE)
        return
    # A list instead of recursion: a client's path may have thousands of parts.
    missing = [path]
    while missing:
        try:
            os.mkdir(missing[-1], _NEW_DIRECTORY_MODE)
        except FileNotFoundError:
            parent = os.path.dirname(missing[-1])
            # The second time round the parent is there and cannot hold new names (/proc).
            if parent == missing[-1] or os.path.isdir(parent):
                raise
            missing.append(parent)
            continue
        except OSError:
            if not os.path.isdir(missing[-1]):
                raise
        missing.pop()
