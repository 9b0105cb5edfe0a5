"""The folders of one watched tree, by the numbers of the kernel's watches and by their names.

A watch of the kernel belongs to a folder, wherever that is moved: so a folder has a parent and a name here,
and a path only when one is asked for.  Pure; the caller adds and ends the kernel's watches.
"""

from __future__ import annotations

MAX_PATH_BYTES = 4095  # the kernel's limit without the NUL; nothing longer can be opened


class PathTooLong(Exception):
    """The path below the root has more bytes than a path can have."""


class Folder:
    """A watched folder; the root has neither a parent nor a name."""

    __slots__ = ("folders", "name", "parent", "watch")

    def __init__(self, watch: int, parent: Folder | None = None, name: bytes = b"") -> None:
        self.watch = watch
        self.parent = parent
        self.name = name
        self.folders: dict[bytes, Folder] = {}

    def below(self, name: bytes = b"") -> bytes:
        """Return the path below the root of this folder, or of a name in it.  Raises PathTooLong."""
        names = [name] if name else []
        length = len(name)
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            length += len(folder.name) + 1
            if length > MAX_PATH_BYTES:
                raise PathTooLong
            folder = folder.parent
        return b"/".join(reversed(names))

    def is_in(self, other: Folder) -> bool:
        """Return whether this is another folder or somewhere below it."""
        folder: Folder | None = self
        while folder is not None and folder is not other:
            folder = folder.parent
        return folder is other


class WatchedTree:
    """All folders of a watch.  Iterating yields the numbers of their watches."""

    def __init__(self, watch: int) -> None:
        self.root = Folder(watch)
        self._folders = {watch: self.root}

    def __len__(self) -> int:
        return len(self._folders)

    def numbers(self) -> set[int]:
        """Return the numbers of all watches."""
        return set(self._folders)

    def get(self, watch: int) -> Folder | None:
        """Return the folder of a watch."""
        return self._folders.get(watch)

    def add(self, parent: Folder, name: bytes, watch: int) -> tuple[Folder, list[int]] | None:
        """Note a folder under a name; return it and the watches that are of no use any more.

        One that is known moves here with all it has.  None for a folder that is above its new place: it was
        mounted there once more, and is watched under its first name.
        """
        known = self._folders.get(watch)
        if known is not None and parent.is_in(known):
            return None
        before = parent.folders.get(name)
        dropped = [] if before is None or before is known else self.drop(before)
        if known is None:
            known = self._folders[watch] = Folder(watch)
        self.put(known, parent, name)
        return known, dropped

    def put(self, folder: Folder, parent: Folder, name: bytes) -> None:
        """Move a folder to a free name."""
        self.take(folder)
        folder.parent, folder.name = parent, name
        parent.folders[name] = folder

    def take(self, folder: Folder) -> None:
        """Take a folder from its parent, for `put` or `drop`; it still knows where it was."""
        parent = folder.parent
        if parent is not None and parent.folders.get(folder.name) is folder:
            del parent.folders[folder.name]

    def drop(self, folder: Folder) -> list[int]:
        """Forget a folder and all below it; return their watches."""
        self.take(folder)
        dropped: list[int] = []
        left = [folder]
        while left:
            one = left.pop()
            left += one.folders.values()
            one.folders = {}  # no cycles: parents hold children and children parents
            one.parent = None
            if self._folders.get(one.watch) is one:
                del self._folders[one.watch]
                dropped.append(one.watch)
        return dropped

    def clear(self) -> None:
        """Forget everything."""
        self.drop(self.root)
