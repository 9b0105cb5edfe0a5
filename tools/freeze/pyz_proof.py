"""A module of dist/execserver.pyz beside its `__main__`: is what lies unpacked what the zip holds?

Loaded only where a sandbox, also one of another program, may have written.  Waits for no pipe and no lease.
"""

from __future__ import annotations

import errno
import os
import stat
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_LINKS = 40  # as in the kernel
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # they say nothing about what was asked for
NO_WAITING = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def links_are_roots(path: str, depth: int = 0) -> bool:
    """Tell whether every link on a path is root's, in a folder of root's, and we are not.

    No sandbox can be mounted over a link, so one that our user can replace leads wherever a command wants.
    """
    at = path.find("/", 1)
    while True:
        part = path[:at] if at > 0 else path
        link = os.lstat(part)
        if stat.S_ISLNK(link.st_mode):
            folder = os.stat(os.path.dirname(part))
            shared = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX
            if not os.geteuid() or link.st_uid or folder.st_uid or shared or depth == MOST_LINKS:
                return False
            target = os.path.join(os.path.dirname(part), os.readlink(part))
            return links_are_roots(target + path[len(part) :], depth + 1)
        if part == path:
            return True
        at = path.find("/", at + 1)


def is_proven(
    tree: str, archive: str, wanted: Callable[[zipfile.ZipFile], Iterable[tuple[str, str]]]
) -> bool:
    """Tell whether every file of a tree is as in the zip, and nothing else is there.

    `wanted` yields the members that belong into it and their paths in it.  Raises OSError for a shortage.
    """
    with zipfile.ZipFile(archive) as packed:
        members = {path: member for member, path in wanted(packed)}
        folders = {path[:at] for path in members for at in range(len(path)) if path[at] == "/"}
        left = set(members)
        for folder, names, files in os.walk(tree, onerror=raise_shortage):
            inner = folder[len(tree) + 1 :]
            inner = inner and inner + "/"
            # Links to folders count as folders here; they are not followed, so the files are missing.
            if not is_own(os.lstat(folder)) or any(inner + name not in folders for name in names):
                return False
            for name in files:
                member = members.get(inner + name)
                if member is None or not is_same(f"{folder}/{name}", packed.getinfo(member), packed):
                    return False
                left.discard(inner + name)
    return not left


def raise_shortage(error: OSError) -> None:
    """Let an error through that is no verdict on a tree."""
    if error.errno in SHORTAGES:
        raise error


def is_own(found: os.stat_result) -> bool:
    """Tell whether nobody else may write to a file or folder."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_same(path: str, member: zipfile.ZipInfo, packed: zipfile.ZipFile) -> bool:
    """Tell whether a file has the contents of a member, and no further name where others could write."""
    try:
        file = os.open(path, os.O_RDONLY | NO_WAITING)
    except OSError as error:
        raise_shortage(error)
        return False
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not is_own(found) or found.st_nlink != 1:
            return False
        return found.st_size == member.file_size and opened.read() == packed.read(member)
