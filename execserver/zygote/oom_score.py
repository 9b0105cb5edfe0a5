"""Has the OOM killer prefer all that this process starts to itself, and so to the server, as a victim."""

from __future__ import annotations

import os

_FILE = "/proc/self/oom_score_adj"
_MORE, _MOST = 500, 1000


class OomScore:
    """Raises the score around each start, since a fork inherits it; owns a descriptor.

    Made while this process is dumpable: afterwards the file is root's.  Going back down needs no right, as
    long as nobody privileged has set a floor.
    """

    __slots__ = ("_fd", "_own", "_raised")

    def __init__(self) -> None:
        self._fd = -1
        try:
            fd = os.open(_FILE, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # a system that lets nobody change it
        own = os.pread(fd, 16, 0).strip()
        self._fd, self._own = fd, own
        self._raised = b"%d" % min(int(own) + _MORE, _MOST)

    def __enter__(self) -> None:
        self._write(raised=True)

    def __exit__(self, *_: object) -> None:
        self._write(raised=False)

    def _write(self, *, raised: bool) -> None:
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, self._raised if raised else self._own, 0)
            except OSError:
                pass  # where it may go up and not down, it stays up: this process, not the server
