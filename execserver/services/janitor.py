"""Removes the placeholders of those that died before they could do it themselves.

A zygote cleans up after everything it started; this is for when it was killed, and for what an earlier server
and its zygote left together.
"""

from __future__ import annotations

import os

from gevent.hub import get_hub

from execserver.sandbox.placeholder_cleaning import clean
from execserver.sandbox.placeholder_records import record_places, state_folder


class Janitor:
    """Cleans for one user; `runtime_dir` is the server's XDG_RUNTIME_DIR."""

    def __init__(self, runtime_dir: bytes | None) -> None:
        self._runtime_dir = runtime_dir

    def clean(self) -> None:
        """Remove what dead owners have left, in a thread if there are any: their files may lie anywhere."""
        folder = state_folder(self._runtime_dir, make=False)
        if folder is not None and os.listdir(folder):
            get_hub().threadpool.apply(clean, (folder, record_places(self._runtime_dir)))
