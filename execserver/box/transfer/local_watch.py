"""Tells that something changed in a tree of this machine, by the kernel's inotify.

What has changed is found by looking at the tree again, so events only say that it is time to.  Every folder
of the tree is watched before it is looked at, so that nothing is missed in between.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final

from gevent.socket import timeout as TimeIsOver
from gevent.socket import wait_read

from execserver.box.shown import shown
from execserver.files import inotify
from execserver.leaving import Leave, failure

_MASK: Final = (
    inotify.IN_MODIFY
    | inotify.IN_ATTRIB
    | inotify.IN_MOVED_FROM
    | inotify.IN_MOVED_TO
    | inotify.IN_CREATE
    | inotify.IN_DELETE
    | inotify.IN_DELETE_SELF
    | inotify.IN_MOVE_SELF
    | inotify.IN_ONLYDIR
    | inotify.IN_DONT_FOLLOW
)


class LocalWatch:
    """Watches folders below a path.  Owns a descriptor until `close`."""

    def __init__(self, top: bytes) -> None:
        """Raises Leave if the user has too many instances."""
        self._top = top
        self._watches: set[int] = set()
        try:
            self._inotify = inotify.Inotify()
        except OSError as error:
            raise _no_more(error) from None

    def cover(self, folders: Iterable[bytes]) -> bool:
        """Watch exactly these folders; return whether one was not watched before.  Raises Leave."""
        found: set[int] = set()
        for name in folders:
            path = os.path.join(self._top, name) if name else self._top
            try:
                found.add(self._inotify.watch(path, _MASK))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.ENOMEM):
                    raise _no_more(error) from None
                # Gone, or no folder any more, or it may not be read: looking at it tells that.
        for gone in self._watches - found:
            self._inotify.unwatch(gone)
        is_new = not found <= self._watches
        self._watches = found
        return is_new

    def wait(self, seconds: float | None = None) -> bool | None:
        """Return whether events were lost, once there are some; None after so many seconds without."""
        try:
            wait_read(self._inotify.fd, timeout=seconds, timeout_exc=TimeIsOver())
        except TimeIsOver:
            return None
        lost = False
        for event in self._inotify.read():
            lost = lost or bool(event.mask & (inotify.IN_Q_OVERFLOW | inotify.IN_UNMOUNT))
            if event.mask & inotify.IN_IGNORED:
                self._watches.discard(event.watch)
        return lost

    def close(self) -> None:
        """End every watch."""
        self._inotify.close()


def _no_more(error: OSError) -> Leave:
    limit = "max_user_instances" if error.errno == errno.EMFILE else "max_user_watches"
    return failure(
        f"this machine watches no more folders: {shown(error.strerror or '', 100)}",
        f"raise /proc/sys/fs/inotify/{limit}, or leave folders out with --exclude",
    )
