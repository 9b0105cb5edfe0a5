"""From the kernel's events to changes, and to further folders that are watched.

A rename is two events with one cookie.  The first half is held until the second one comes; if none does, the
name has left the tree.  A folder that is moved within the tree keeps its watches.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from gevent import sleep

from execserver.core.pending_changes import (
    ATTRIBUTES,
    CREATED,
    MODIFIED,
    REMOVED,
    RENAMED,
    Change,
    PendingChanges,
)
from execserver.core.watched_tree import Folder, PathTooLong
from execserver.files.inotify import (
    IN_ATTRIB,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_IGNORED,
    IN_ISDIR,
    IN_MODIFY,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    IN_UNMOUNT,
    Event,
)
from execserver.services.file_watches.scan import Scan

_TURN_S = 0.002
_MAX_MOVING = 64  # halves of renames; the two are next to each other, nearly always
_ENDS = {IN_DELETE_SELF: "removed", IN_MOVE_SELF: "moved", IN_UNMOUNT: "unmounted"}
_ENDS_ABOVE = {**_ENDS, IN_DELETE: "removed", IN_MOVED_FROM: "moved"}


class _Moving(NamedTuple):
    """The first half of a rename; `folder` is what was watched of it, at its old place."""

    parent: Folder
    name: bytes
    path: bytes
    is_directory: bool
    folder: Folder | None


class Events:
    """What to do about each event.  `lost`: look at everything again; `ended`: what became of the root."""

    def __init__(self, scan: Scan, recursive: bool, pending: PendingChanges) -> None:
        self._scan = scan
        self._recursive = recursive
        self._pending = pending
        self._moving: dict[int, _Moving] = {}
        self.lost: str | None = None
        self.ended: str | None = None

    @property
    def moving(self) -> bool:
        """Whether the second half of a rename may come."""
        return bool(self._moving)

    def take(self, events: list[Event]) -> None:
        """Work on events in their order; others run meanwhile."""
        turn = time.monotonic()
        for event in events:
            if time.monotonic() - turn > _TURN_S:
                sleep(0)
                turn = time.monotonic()
            if self.ended is not None:
                return
            try:
                self._take(event)
            except PathTooLong:
                self._pending.overflow("a path is too long")

    def settle(self) -> None:
        """Take all halves of renames for what has left the tree."""
        moving, self._moving = self._moving, {}
        for one in moving.values():
            self._left(one)

    def forget(self) -> None:
        """Forget halves of renames: everything is looked at again."""
        self._moving.clear()
        self.lost = None

    def _take(self, event: Event) -> None:
        if event.mask & IN_Q_OVERFLOW:
            self.lost = "the kernel's queue was full (fs.inotify.max_queued_events)"
            return
        folder = self._scan.tree.get(event.watch)
        if folder is None:
            self._take_above(event)  # or of a watch that has ended
            return
        if not event.name:
            self._take_own(folder, event.mask)
            return
        is_directory = bool(event.mask & IN_ISDIR)
        if event.mask & IN_CREATE:
            self._made(folder, event.name, is_directory)
        elif event.mask & IN_DELETE:
            self._gone(folder, event.name, is_directory)
        elif event.mask & IN_MOVED_FROM:
            self._moved_from(folder, event, is_directory)
        elif event.mask & IN_MOVED_TO:
            self._moved_to(folder, event, is_directory)
        else:
            kind = MODIFIED if event.mask & IN_MODIFY else ATTRIBUTES
            self._pending.add(Change(folder.below(event.name), kind, is_directory))

    def _take_above(self, event: Event) -> None:
        name = self._scan.above.get(event.watch)
        if name is None or (event.name and event.name != name):
            return
        for bit, word in _ENDS_ABOVE.items():
            if event.mask & bit:
                self.ended = word
                return

    def _take_own(self, folder: Folder, mask: int) -> None:
        is_root = folder.parent is None and folder is self._scan.tree.root
        if is_root:
            for bit, word in _ENDS.items():
                if mask & bit:
                    self.ended = word
                    return
            if mask & IN_ATTRIB:
                self._pending.add(Change(b"", ATTRIBUTES, True))
            elif mask & IN_IGNORED:
                self.ended = "removed"
        elif mask & IN_UNMOUNT:
            self.lost = "a file system was unmounted"
        elif mask & IN_IGNORED:
            self._scan.drop(folder)

    def _made(self, folder: Folder, name: bytes, is_directory: bool) -> None:
        self._settle_name(folder, name)
        self._pending.add(Change(folder.below(name), CREATED, is_directory))
        if is_directory and self._recursive:
            self._scan.enter(folder, name)

    def _gone(self, folder: Folder, name: bytes, is_directory: bool) -> None:
        child = folder.folders.get(name)
        if child is not None:
            self._scan.drop(child)
        self._pending.add(Change(folder.below(name), REMOVED, is_directory))

    def _moved_from(self, folder: Folder, event: Event, is_directory: bool) -> None:
        if len(self._moving) >= _MAX_MOVING:
            self.settle()
        self._settle_name(folder, event.name)
        child = folder.folders.get(event.name)
        if child is not None:
            self._scan.tree.take(child)
        self._moving[event.cookie] = _Moving(
            folder, event.name, folder.below(event.name), is_directory, child
        )

    def _moved_to(self, folder: Folder, event: Event, is_directory: bool) -> None:
        moved = self._moving.pop(event.cookie, None)
        if moved is None:
            replaced = folder.folders.get(event.name)
            if replaced is not None:
                self._scan.drop(replaced)
            self._made(folder, event.name, is_directory)
            return
        self._settle_name(folder, event.name)
        replaced = folder.folders.get(event.name)
        if replaced is not None and replaced is not moved.folder:
            self._scan.drop(replaced)
        self._pending.add(Change(folder.below(event.name), RENAMED, is_directory, moved.path))
        if not is_directory or not self._recursive:
            return
        if moved.folder is not None and self._scan.tree.get(moved.folder.watch) is moved.folder:
            self._scan.tree.put(moved.folder, folder, event.name)
        else:  # it could not be watched where it was
            self._scan.enter(folder, event.name)

    def _settle_name(self, folder: Folder, name: bytes) -> None:
        """Take a half of a rename from this name, which is used again, for what has left the tree."""
        for cookie, one in list(self._moving.items()):
            if one.parent is folder and one.name == name:
                del self._moving[cookie]
                self._left(one)

    def _left(self, one: _Moving) -> None:
        if one.folder is not None and self._scan.tree.get(one.folder.watch) is one.folder:
            self._scan.drop(one.folder)
        self._pending.add(Change(one.path, REMOVED, one.is_directory))
