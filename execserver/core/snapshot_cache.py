"""Which shell snapshots a session keeps, and when a failed capture is tried again.  Pure.

A capture that fails costs a command up to ten seconds, so it is tried `MAX_ATTEMPTS` times, at least
`PAUSE_S` apart, and then no more.  Of `MAX_ENTRIES` keys the least recently used one is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from execserver.core.shell_snapshot import Snapshot

MAX_ENTRIES = 16
MAX_ATTEMPTS = 3
PAUSE_S = 1.0


class _Entry:
    __slots__ = ("attempts", "not_before", "snapshot")

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.attempts = 0
        self.not_before = 0.0


class SnapshotCache:
    """The snapshots of one session by what they depend on."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable) -> Snapshot | None:
        """Return the snapshot of a key, if there is one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.snapshot

    def may_capture(self, key: Hashable, now: float) -> bool:
        """Tell whether a capture may be tried for a key without a snapshot."""
        entry = self._entries.get(key)
        return entry is None or (
            entry.snapshot is None and entry.attempts < MAX_ATTEMPTS and now >= entry.not_before
        )

    def captured(self, key: Hashable, snapshot: Snapshot | None, now: float) -> None:
        """Keep the result of a capture; None if it failed."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        entry.snapshot = snapshot
        entry.attempts += 1
        entry.not_before = now + PAUSE_S
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
