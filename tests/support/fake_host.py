"""A host that exists nowhere: a tree of directories, files and links, for plans that need no kernel."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from stat import S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG

from execserver.sandbox.policy.host import Host, Stamp


class FakeHost(Host):
    """Made from paths and what is at them; parents are made as directories.

    A value of bytes is a file's content, `-> text` a link, `dir`, `fifo` and `locked` (a directory nobody may
    look into) what they say.
    """

    def __init__(self, tree: Mapping[str, str | bytes] = {}, tmpdir: bytes | None = None) -> None:
        super().__init__(tmpdir)
        self.nodes: dict[bytes, tuple[int, bytes]] = {b"/": (S_IFDIR, b"")}
        self.inodes: dict[bytes, int] = {b"/": 1}
        self.locked: set[bytes] = set()
        self.clock = 0.0
        self.looks = 0
        self._next = 2
        for path, value in tree.items():
            self.put(path, value)

    def put(self, path: str, value: str | bytes) -> None:
        """Make or replace what is at a path."""
        where = path.encode()
        parent = where.rpartition(b"/")[0]
        if parent and parent not in self.nodes:
            self.put(parent.decode(), "dir")
        if isinstance(value, bytes):
            self._set(where, S_IFREG, value)
        elif value.startswith("-> "):
            self._set(where, S_IFLNK, value[3:].encode())
        else:
            self._set(where, S_IFIFO if value == "fifo" else S_IFDIR, b"")
            if value == "locked":
                self.locked.add(where)

    def remove(self, path: str) -> None:
        """Remove what is at a path, with all below it."""
        where = path.encode()
        for known in [known for known in self.nodes if known == where or known.startswith(where + b"/")]:
            del self.nodes[known]

    def stamp(self, path: bytes) -> Stamp | None:
        self.looks += 1
        where = self._parent_followed(path)
        if where is None or where not in self.nodes:
            return None
        kind = self.nodes[where][0]
        inode = self.inodes[where]
        return (1, inode, kind, inode if kind in (S_IFREG, S_IFLNK) else 0)

    def shows(self, stamps: Mapping[bytes, Stamp | None]) -> bool:
        try:
            return all(self.stamp(path) == stamp for path, stamp in stamps.items())
        except OSError:
            return False

    def is_dir(self, path: bytes) -> bool:
        where = self._followed(path)
        return where is not None and self.nodes[where][0] == S_IFDIR

    def readlink(self, path: bytes) -> bytes:
        kind, text = self.nodes[path]
        assert kind == S_IFLNK
        return text

    def read_start(self, path: bytes, limit: int) -> bytes:
        kind, content = self.nodes[path]
        return content[:limit] if kind == S_IFREG else b""

    def scan(self, path: bytes) -> list[tuple[bytes, int]]:
        if path in self.locked:
            raise PermissionError(errno.EACCES, "locked")
        prefix = path if path == b"/" else path + b"/"
        return [
            (known[len(prefix) :], kind)
            for known, (kind, _) in self.nodes.items()
            if known.startswith(prefix) and known != path and b"/" not in known[len(prefix) :]
        ]

    def now(self) -> float:
        return self.clock

    def _set(self, path: bytes, kind: int, content: bytes) -> None:
        self.nodes[path] = (kind, content)
        self.inodes[path] = self._next
        self._next += 1

    def _parent_followed(self, path: bytes) -> bytes | None:
        """Return the path with all links followed but a last one."""
        if path in self.nodes:
            parent = path.rpartition(b"/")[0]
            if parent in self.locked:
                raise PermissionError(errno.EACCES, "locked")
            return path
        parent, _, name = path.rpartition(b"/")
        followed = self._followed(parent or b"/")
        if followed is None:
            return None
        if followed in self.locked:
            raise PermissionError(errno.EACCES, "locked")
        return (followed if followed != b"/" else b"") + b"/" + name

    def _followed(self, path: bytes, depth: int = 0) -> bytes | None:
        """Return where a path leads, written without the walk of the product; None for nowhere."""
        if depth > 40:
            return None
        where = b"/"
        names = [name for name in path.split(b"/") if name and name != b"."]
        for index, name in enumerate(names):
            if name == b"..":
                where = where.rpartition(b"/")[0] or b"/"
                continue
            here = (where if where != b"/" else b"") + b"/" + name
            if here not in self.nodes:
                return None
            kind, text = self.nodes[here]
            if kind == S_IFLNK:
                base = b"" if text.startswith(b"/") else where
                return self._followed(b"/".join([base, text, *names[index + 1 :]]), depth + 1)
            where = here
        return where
