"""The initial file system of a machine: a cpio archive, gzipped, that depends on its contents only."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LEVEL = 1  # it is read once, by a slow machine
_LAST = "TRAILER!!!"


class Entry(NamedTuple):
    """A file, a folder, a symlink (`data` is its target) or a device (`device` is major and minor)."""

    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


Files = dict[str, Entry]  # by path, without a leading slash


def folder(mode: int = 0o755) -> Entry:
    """Return a folder."""
    return Entry(stat.S_IFDIR | mode)


def file(data: bytes, mode: int = 0o644) -> Entry:
    """Return a regular file."""
    return Entry(stat.S_IFREG | mode, data)


def symlink(target: str) -> Entry:
    """Return a symlink."""
    return Entry(stat.S_IFLNK | 0o777, target.encode())


def of_folder(root: Path) -> Files:
    """Return all that lies in a folder; everything is root's there."""
    return {str(path.relative_to(root)): _entry(path) for path in sorted(root.rglob("*"))}


def pack(files: Files) -> bytes:
    """Return the archive; folders that no entry names are made."""
    complete = {**{parent: folder() for name in files for parent in _parents(name)}, **files}
    body = bytearray()
    for number, (name, entry) in enumerate(sorted(complete.items()), start=1):
        body += _member(number, name, entry)
    body += _member(0, _LAST, Entry(0))
    return gzip.compress(bytes(body), _LEVEL, mtime=0)


def _entry(path: Path) -> Entry:
    found = path.lstat()
    if path.is_symlink():
        return symlink(str(path.readlink()))
    return Entry(found.st_mode, path.read_bytes() if path.is_file() else b"")


def _parents(name: str) -> Iterator[str]:
    for at, letter in enumerate(name):
        if letter == "/":
            yield name[:at]


def _member(number: int, name: str, entry: Entry) -> bytes:
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
