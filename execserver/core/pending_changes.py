"""What has happened in a watched tree and is not told yet, in order, and with a bound.

Changes of one path that follow each other become one.  A file that was made and is gone again leaves nothing.
Beyond the bound everything is dropped and one `overflow` takes its place: whoever is told looks again.
Pure, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

MAX_CHANGES: Final = 10_000
MAX_BYTES: Final = 2 * 1024 * 1024  # of paths, all together
MAX_ERRORS: Final = 100

CREATED = "created"
MODIFIED = "modified"
REMOVED = "removed"
RENAMED = "renamed"
ATTRIBUTES = "attributes"

_TELLS_ALL = {MODIFIED: (CREATED, MODIFIED), ATTRIBUTES: (CREATED, MODIFIED, ATTRIBUTES), CREATED: (CREATED,)}


class Change(NamedTuple):
    """One change; `path` and, of a rename, `old_path` are below the root."""

    path: bytes
    kind: str
    is_directory: bool
    old_path: bytes | None = None


class Batch(NamedTuple):
    """What is told at once: changes, folders that cannot be watched, and why changes were lost, if so."""

    changes: list[Change]
    errors: list[tuple[bytes, str]]
    overflow: str | None


class PendingChanges:
    """Changes that wait.  `stirred` is called whenever something is there to be told."""

    def __init__(self, stirred: Callable[[], object]) -> None:
        self._stirred = stirred
        self._changes: dict[int, Change] = {}  # by their order
        self._last: dict[bytes, int] = {}  # the last change of a path, as long as it may take further ones
        self._next = 0
        self._bytes = 0
        self._errors: dict[bytes, str] = {}
        self._overflow: str | None = None

    def __bool__(self) -> bool:
        return bool(self._changes or self._errors or self._overflow)

    def add(self, change: Change) -> None:
        """Note a change behind all others."""
        if self._absorbed(change):
            return
        size = len(change.path) + len(change.old_path or b"")
        if len(self._changes) >= MAX_CHANGES or self._bytes + size > MAX_BYTES:
            self.overflow(f"more than {MAX_CHANGES} changes, or {MAX_BYTES} bytes, were not sent yet")
            return
        if change.kind == RENAMED:
            self._last.clear()  # what is known by path is by other paths now
        else:
            self._last[change.path] = self._next
        self._changes[self._next] = change
        self._next += 1
        self._bytes += size
        self._stirred()

    def error(self, path: bytes, message: str) -> None:
        """Note a folder that cannot be watched."""
        if len(self._errors) < MAX_ERRORS:
            self._errors[path] = message
            self._stirred()

    def overflow(self, reason: str) -> None:
        """Drop all changes: they are lost, and so may be others."""
        self._changes.clear()
        self._last.clear()
        self._bytes = 0
        self._overflow = reason
        self._stirred()

    def take(self, most: int, most_bytes: int) -> Batch:
        """Return the oldest changes, and errors and an overflow before any of them."""
        errors, self._errors = list(self._errors.items()), {}
        overflow, self._overflow = self._overflow, None
        taken: list[Change] = []
        size = 0
        for order in list(islice(self._changes, most)):
            change = self._changes[order]
            size += len(change.path) + len(change.old_path or b"")
            if taken and size > most_bytes:
                break
            taken.append(change)
            self._forget(order)
        return Batch(taken, errors, overflow)

    def _absorbed(self, change: Change) -> bool:
        """Return whether the last change of the path tells of this one, too."""
        order = self._last.get(change.path)
        if order is None:
            return False
        last = self._changes[order]
        if last.is_directory != change.is_directory:
            return False
        if last.kind in _TELLS_ALL.get(change.kind, ()):
            return True
        if change.kind == MODIFIED and last.kind == ATTRIBUTES:
            self._changes[order] = change
            return True
        if change.kind != REMOVED:
            return False
        if last.kind in (MODIFIED, ATTRIBUTES):
            self._forget(order)
        elif last.kind == CREATED and not change.is_directory:
            self._forget(order)
            return True
        return False

    def _forget(self, order: int) -> None:
        change = self._changes.pop(order)
        self._bytes -= len(change.path) + len(change.old_path or b"")
        if self._last.get(change.path) == order:
            del self._last[change.path]
