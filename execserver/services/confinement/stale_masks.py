"""Stale mask cleanup: removes mask targets whose owners died before they could do it.

A zygote cleans up after everything it started.  This is for a zygote that was killed, and for what an earlier
server and its zygote left behind.
"""

from __future__ import annotations

import os

from gevent.hub import get_hub

from execserver.sandbox.masks.records import record_places, state_folder
from execserver.sandbox.masks.stale import clean


class StaleMasks:
    """The cleanup for one user; `runtime_dir` is the server's XDG_RUNTIME_DIR."""

    def __init__(self, runtime_dir: bytes | None) -> None:
        self._runtime_dir = runtime_dir

    def clean(self) -> None:
        """Remove the mask targets of dead owners.

        If there are mask records, a thread does it: the mask targets may be on a file system that hangs.
        """
        folder = state_folder(self._runtime_dir, make=False)
        if folder is not None and os.listdir(folder):
            get_hub().threadpool.apply(clean, (folder, record_places(self._runtime_dir)))
