"""The host as it is without placeholders: whether commands run just now makes no difference to a plan.

Else every command's start and end would change the plans of its workspace: workers would be replaced, and
starts be planned again.  A view built from such a plan finds the placeholder, and uses it as its own.
"""

from __future__ import annotations

import os
import time

from execserver.sandbox.host import Host
from execserver.sandbox.placeholder_files import identity_of, may_be_own_placeholder
from execserver.sandbox.placeholder_records import GOING, MADE, find_note, record_places

_KEPT_S = 1.0  # a note that is still there is looked for anew after this; its owner may have died
_MOST_KEPT = 256


class PlaceholderHost(Host):
    """This machine without the placeholders in use; they are known by their looks and their makers' notes."""

    def __init__(self, tmpdir: bytes | None = None, runtime_dir: bytes | None = None) -> None:
        super().__init__(tmpdir)
        self._places = record_places(runtime_dir)
        self._known: dict[tuple[int, int], tuple[bytes, float]] = {}

    def hides(self, found: os.stat_result) -> bool:
        """Tell whether an object is a placeholder that somebody uses."""
        if found.st_mode & 0o222 or not may_be_own_placeholder(found):
            return False
        key, now = (found.st_dev, found.st_ino), time.monotonic()
        note, until = self._known.get(key, (b"", 0.0))
        # Asked before every file call: one look in place of ten.
        if now < until and os.access(note, os.F_OK):
            return True
        looked_for = find_note(self._places, identity_of(found), (MADE, GOING))
        if looked_for is None:
            self._known.pop(key, None)
            return False
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[key] = (looked_for, now + _KEPT_S)
        return True
