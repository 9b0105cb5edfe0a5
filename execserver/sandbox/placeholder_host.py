"""The host as it is without placeholders: whether commands run just now makes no difference to a plan.

Else every command's start and end would change the plans of its workspace: workers would be replaced, and
starts be planned again.  A view built from such a plan finds the placeholder, and locks it as its own.
"""

from __future__ import annotations

import os

from execserver.sandbox.host import Host
from execserver.sandbox.placeholder_files import may_be_placeholder

LOCKS = b"/proc/locks"
_PIECE_BYTES = 64 * 1024
_MOST_BYTES = 4 * 1024 * 1024


class PlaceholderHost(Host):
    """This machine without the placeholders in use; they are known by their looks and their lock."""

    def hides(self, found: os.stat_result) -> bool:
        """Tell whether an object is a placeholder that somebody uses."""
        return not found.st_mode & 0o222 and may_be_placeholder(found) and _is_locked(found.st_ino)


def _is_locked(inode: int) -> bool:
    """Tell whether somebody holds a shared lock on an object; its device may have another number there."""
    try:
        descriptor = os.open(LOCKS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    locks = b""
    try:
        while len(locks) < _MOST_BYTES and (piece := os.read(descriptor, _PIECE_BYTES)):
            locks += piece
    finally:
        os.close(descriptor)
    needle = b":%d " % inode
    return any(needle in line and b" FLOCK " in line and b" READ " in line for line in locks.splitlines())
