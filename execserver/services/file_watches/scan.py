"""Puts the kernel's watches on a folder and on all below it, and tells what is in new ones.

Each folder is opened first, by the same operation as any other request's, without following a symlink; the
watch is put on what was opened.  Then it is listed, through the same descriptor: whatever is made from then
on has an event, and whatever was there before is in the list, so that nothing is missed.  What is in both is
told twice.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from gevent import sleep

from execserver.core.pending_changes import CREATED, Change, PendingChanges
from execserver.core.watched_tree import MAX_PATH_BYTES, Folder, PathTooLong, WatchedTree
from execserver.files.folders import Name
from execserver.files.inotify import (
    IN_ATTRIB,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_MASK_ADD,
    IN_MODIFY,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_ONLYDIR,
    Inotify,
)
from execserver.protocol.errors import InvalidRequest, RpcError, from_os_error

MAX_NAMES: Final = 200_000  # of one folder
_TURN_S: Final = 0.002  # between two chances for others to run
_NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB
_MASK = _NAMES | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_ABOVE = IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_MASK_ADD
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))  # removed, or another thing by now


class WatchableFiles(Protocol):
    """The operations of a request, with or without a sandbox."""

    def open_folder(self, path: bytes) -> int:
        """Open a directory without following a symlink.  Raises OSError and RpcError."""

    def names_in(self, fd: int, most: int, only_folders: bool) -> tuple[list[Name], bool]:
        """List an open directory.  Raises OSError and RpcError."""

    def release_folder(self, fd: int) -> None:
        """Close what `open_folder` has opened."""

    def visible(self, paths: list[bytes]) -> list[bool]:
        """Return of each path whether it may be read."""


class Budget(Protocol):
    """How many folders may be watched."""

    def take(self) -> str | None:
        """Take one; return why that cannot be, or None."""

    def give(self, folders: int) -> None:
        """Give some back."""


class Full(InvalidRequest):
    """No further folder can be watched; the text has the cure."""


class Scan:
    """The watched folders of one root.  Owns the kernel's watches until `close`."""

    def __init__(
        self,
        files: WatchableFiles,
        root: bytes,
        recursive: bool,
        budget: Budget,
        pending: PendingChanges,
        is_over: Callable[[], bool],
    ) -> None:
        """Watch the root, which has no symlink in its path.  Raises OSError and RpcError."""
        self.files = files
        self._root = root.rstrip(b"/")
        self._recursive = recursive
        self._budget = budget
        self._pending = pending
        self._is_over = is_over
        self.inotify = _instance()
        self.tree = WatchedTree(-1)
        self.above: dict[int, bytes] = {}  # what the folders above have on the way to the root
        try:
            self._watch_above()
            self._watch_all()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all watches."""
        self._give_back()
        self.tree.clear()
        self.inotify.close()

    def path(self, below: bytes) -> bytes:
        """Return the path of what is below the root."""
        return self._root + b"/" + below if below else self._root or b"/"

    def enter(self, parent: Folder, name: bytes) -> None:
        """Watch a folder and all below it, and tell what is in it already."""
        try:
            self._enter(parent, name, told=True)
        except Full as full:
            self._pending.error(parent.below(name), full.message)
            self._pending.overflow(full.message)

    def drop(self, folder: Folder) -> None:
        """Watch a folder no longer, nor anything below it."""
        self._end(self.tree.drop(folder))

    def again(self) -> None:
        """Look at the whole tree again: events are lost.  Raises OSError and RpcError if the root is gone."""
        before, self.tree = self.tree, WatchedTree(-1)
        numbers = before.numbers()
        self._budget.give(len(before))
        before.clear()
        try:
            self._watch_all()
        except Full as full:
            self._pending.overflow(full.message)
        finally:
            for number in numbers - self.tree.numbers():
                self.inotify.unwatch(number)

    def _watch_above(self) -> None:
        """Watch for the end of the folders above, as far as they may be read.

        The root's own events are not enough: it has none if it is moved with a folder above, and those of its
        removal come only when no process is in it any more.
        """
        path, name = os.path.split(self._root)
        while name:
            try:
                fd = self.files.open_folder(path)
            except (OSError, RpcError):
                pass
            else:
                self._watch_one_above(fd, name)
            path, name = os.path.split(path)

    def _watch_one_above(self, fd: int, name: bytes) -> None:
        try:
            self.above[self.inotify.watch(b"/proc/self/fd/%d" % fd, _ABOVE)] = name
        except OSError:
            pass
        finally:
            self.files.release_folder(fd)

    def _watch_all(self) -> None:
        fd = self.files.open_folder(self._root or b"/")
        try:
            number = self._watch(fd)
            self.tree = WatchedTree(number)
            names = self._listed(fd, b"", told=False) if self._recursive else []
        finally:
            self.files.release_folder(fd)
        for name, is_directory in names:
            if is_directory:
                self._enter(self.tree.root, name, told=False)

    def _enter(self, parent: Folder, name: bytes, told: bool) -> None:
        left = [(parent, name)]
        turn = time.monotonic()
        while left and not self._is_over():
            if time.monotonic() - turn > _TURN_S:
                sleep(0)
                turn = time.monotonic()
            parent, name = left.pop()
            if self.tree.get(parent.watch) is not parent:
                continue  # dropped meanwhile
            found = self._opened(parent, name, told)
            if found is None:
                continue
            folder, names = found
            for each, is_directory in names:
                if told:
                    self._tell(folder, each, is_directory)
                if is_directory:
                    left.append((folder, each))

    def _opened(self, parent: Folder, name: bytes, told: bool) -> tuple[Folder, list[Name]] | None:
        """Watch and list one folder; None if it is not there, watched already, or cannot be."""
        below = b""
        try:
            below = parent.below(name)
            path = self.path(below)
            if len(path) > MAX_PATH_BYTES:
                raise PathTooLong
            fd = self.files.open_folder(path)
        except PathTooLong:
            self._pending.error(below or parent.name, "the path is too long")
            return None
        except (OSError, RpcError) as error:
            if not isinstance(error, OSError) or error.errno not in _GONE:
                self._pending.error(below, _text(error))
            return None
        try:
            number = self._watch(fd)
            known = self.tree.get(number)
            if known is not None and known.parent is parent and known.name == name:
                return None
            added = self.tree.add(parent, name, number)
            if added is None:
                self._pending.error(below, "it is a folder above, mounted here once more")
                return None
            self._end(added[1])
            return added[0], self._listed(fd, below, told)
        except OSError as error:
            self._pending.error(below, _text(error))
            return None
        finally:
            self.files.release_folder(fd)

    def _listed(self, fd: int, below: bytes, told: bool) -> list[Name]:
        names, complete = self.files.names_in(fd, MAX_NAMES, only_folders=not told)
        if not complete:
            text = f"it has more than {MAX_NAMES} names, and not all were looked at"
            self._pending.error(below, text)
            self._pending.overflow(text)
        return names

    def _watch(self, fd: int) -> int:
        """Return the number of a folder's watch.  Raises Full and OSError."""
        refusal = self._budget.take()
        if refusal is not None:
            raise Full(refusal)
        try:
            number = self.inotify.watch(b"/proc/self/fd/%d" % fd, _MASK)
        except OSError as error:
            self._budget.give(1)
            if error.errno == errno.ENOSPC:
                raise Full(_no_watches()) from None
            raise
        if self.tree.get(number) is not None:
            self._budget.give(1)
        return number

    def _tell(self, folder: Folder, name: bytes, is_directory: bool) -> None:
        try:
            self._pending.add(Change(folder.below(name), CREATED, is_directory))
        except PathTooLong:
            self._pending.overflow("a path is too long")

    def _end(self, numbers: list[int]) -> None:
        for number in numbers:
            self.inotify.unwatch(number)
        self._budget.give(len(numbers))

    def _give_back(self) -> None:
        if self.tree.root.watch >= 0:
            self._budget.give(len(self.tree))


def _instance() -> Inotify:
    try:
        return Inotify()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        most = _least("fs/inotify/max_user_instances", "user/max_inotify_instances")
        raise Full(
            f"this user has no inotify instance left ({most}), or "
            "the server no descriptor: end other watches, or have the administrator raise the limit"
        ) from None


def _no_watches() -> str:
    most = _least("fs/inotify/max_user_watches", "user/max_inotify_watches")
    return (
        f"this user has no inotify watch left ({most}): watch fewer folders, "
        "or have the administrator raise the limit"
    )


def _least(*names: str) -> str:
    """Return the setting of the kernel that allows the least: a user namespace may have a lower one."""
    found: list[tuple[int, str]] = []
    for name in names:
        try:
            with open(f"/proc/sys/{name}", encoding="ascii") as file:
                found.append((int(file.read()), name.replace("/", ".")))
        except (OSError, ValueError):
            continue
    return "unknown" if not found else "{1} is {0}".format(*min(found))


def _text(error: OSError | RpcError) -> str:
    found = from_os_error(error) if isinstance(error, OSError) else error
    return os.fsencode(found.message).decode("utf-8", "replace")
