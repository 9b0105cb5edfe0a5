"""What a tree consists of, as both sides of a sync tell it, and which names take no part.  Pure."""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

PERMISSIONS: Final = 0o777
LARGEST_FILE: Final = 2**63 - 1
MAX_NODES: Final = 2_000_000
MAX_NAME_BYTES: Final = 256 * 1024 * 1024  # of a whole tree, with the targets of its links
_PART_END: Final = b".execserver-part"
_LONGEST_NAME: Final = 255
# What is made for a moment before it gets its name, here and on a box.
_FRESH = re.compile(rb"\.execserver-(?:[0-9a-f]{16}|[0-9]{1,10}\.part)")


class Kind(enum.Enum):
    """What a name stands for."""

    FILE = "file"
    FOLDER = "directory"
    LINK = "symlink"


class Node(NamedTuple):
    """One name; the size is that of a file, the target that of a link."""

    kind: Kind
    size: int = 0
    mode: int = 0
    modified_ns: int = 0
    target: bytes = b""


Tree = dict[bytes, Node]
"""Nodes by their name below the top, whose own name is empty."""


class TooLarge(Exception):
    """A tree has more names than are held."""


def part_name(name: bytes) -> bytes:
    """Return the name, beside a file, under which it is collected until it is whole."""
    return b"." + name[: _LONGEST_NAME - 1 - len(_PART_END)] + _PART_END


def beside(name: bytes) -> bytes:
    """Return the path of the part of a path."""
    folder, slash, last = name.rpartition(b"/")
    return folder + slash + part_name(last)


def is_fresh(name: bytes) -> bool:
    """Return whether the last component is one that something has only for a moment."""
    return _FRESH.fullmatch(name.rpartition(b"/")[2]) is not None


def is_part(name: bytes) -> bool:
    """Return whether the last component is that of a part of a file."""
    last = name.rpartition(b"/")[2]
    return last.startswith(b".") and last.endswith(_PART_END)


class Excluded:
    """Which names take no part: a pattern without `/` is about each name, another one about whole paths."""

    def __init__(self, patterns: Sequence[str]) -> None:
        whole = [each.strip("/") for each in patterns if "/" in each.strip("/")]
        single = [each.strip("/") for each in patterns if "/" not in each.strip("/")]
        self._whole = _matcher(whole)
        self._single = _matcher(single)

    def here(self, name: bytes) -> bool:
        """Return whether a path itself is excluded; what is below an excluded one is its caller's matter."""
        if self._single is not None and self._single.fullmatch(_text(name.rpartition(b"/")[2])):
            return True
        return self._whole is not None and self._whole.fullmatch(_text(name)) is not None

    def __call__(self, name: bytes) -> bool:
        """Return whether a path, or one above it, is excluded."""
        if self._single is None and self._whole is None:
            return False
        at = name.find(b"/")
        while at >= 0:
            if self.here(name[:at]):
                return True
            at = name.find(b"/", at + 1)
        return self.here(name)


def _matcher(patterns: Sequence[str]) -> re.Pattern[str] | None:
    if not patterns:
        return None
    return re.compile("|".join(fnmatch.translate(each) for each in patterns))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
