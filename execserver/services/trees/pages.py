"""Walks of whole trees in pages: depth first by name, so the end of one page says where the next begins.

Each directory is listed by one operation of `FileService` or of a sandboxed request, so every one is under
the same rules as if the client had listed it, and none holds the server up.  Symlinks and special files are
passed over, or with symlinks yielded and the others noted.  A walk holds the names that are still to come, at
most `_PENDING`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gevent import sleep

from execserver.files.walk import MAX_DEPTH, MAX_ENTRIES, NO_ENTRY, WalkOptions
from execserver.protocol.errors import InvalidRequest, RpcError, from_os_error
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles

if TYPE_CHECKING:
    from execserver.files.walk import Walk

PAGE_S = 5.0  # a page ends after this long, before the next entry
_PENDING = 200_000
_TURN_S = 0.002  # between two chances for others to run
_TURNS = 1000  # names that are made of URIs in that time
_ONE_LEVEL = WalkOptions(0, 1, MAX_ENTRIES, follow_links=False, prune_hidden=False)
_WITH_LINKS = WalkOptions(0, 1, MAX_ENTRIES, follow_links=False, prune_hidden=False, list_links=True)
_Names = list[tuple[bytes, bool]]  # in reverse: the next one is popped


class TreePage:
    """One page of a walk below a directory, whose path may be a symlink.

    Iterating yields the path below the root, in bytes, and whether it is a directory; `errors` has what could
    not be listed, `others` the paths of what is no file, directory or symlink, `next` the last path once the
    page is full, and `root` the resolved root.
    """

    def __init__(
        self,
        files: FileService | ConfinedFiles,
        root: PathUri,
        after: PathUri | None,
        most: int,
        links: bool = False,
    ) -> None:
        """`most` bounds entries, errors and others together; with `links` symlinks are yielded as files.

        Raises InvalidRequest if `after` is not below the root.
        """
        self._options = _WITH_LINKS if links else _ONE_LEVEL
        self.errors: list[FsWalkError] = []
        self.others: list[bytes] = []
        self.next: PathUri | None = None
        self._files = files
        self._shown = root.native().rstrip(b"/")
        self._skipped = self._below(after)
        self.root = files.canonicalize(root.native()).rstrip(b"/")
        self._most = most
        self._counted = 0
        self._deadline = time.monotonic() + PAGE_S
        self._pruned = False
        self._pending = 0

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        levels = [self._list([])]
        names: list[bytes] = []
        turn = time.monotonic()
        while levels:
            if time.monotonic() - turn > _TURN_S:
                sleep(0)
                turn = time.monotonic()
            if not levels[-1]:
                levels.pop()
                del names[-1:]
                continue
            name, is_directory = levels[-1].pop()
            self._pending -= 1
            here = [*names, name]
            if not self._was_before(here):
                yield b"/".join(here), is_directory
                if self._is_full(here):
                    return
            if is_directory and not self._pruned:
                names.append(name)
                levels.append(self._list(names))
            self._pruned = False

    def path(self, below: bytes) -> bytes:
        """Return the path to open for a path below the root."""
        return self.root + b"/" + below

    def below(self, uri: PathUri) -> bytes:
        """Return the path below the root of one that the client names.  Raises InvalidRequest."""
        return b"/".join(self._below(uri))

    def uri(self, below: bytes) -> PathUri:
        """Return the path as the client names it."""
        return PathUri.from_native(self._shown + b"/" + below if below else self._shown or b"/")

    def count(self, entries: int = 1) -> None:
        """Count entries that are part of the page; the page ends behind the one that makes it full."""
        self._counted += entries

    def prune(self) -> None:
        """Do not enter the directory that was yielded last; if it ended a page, the next one may enter it."""
        self._pruned = True

    def refuse(self, below: bytes, error: OSError | RpcError) -> None:
        """Note an error about a path below the root; it counts as an entry."""
        text = str(from_os_error(error).message if isinstance(error, OSError) else error.message)
        self.errors.append(FsWalkError(path=self.uri(below), message=text))
        self._counted += 1

    def _below(self, after: PathUri | None) -> list[bytes]:
        if after is None:
            return []
        path = after.native()
        if not path.startswith(self._shown + b"/"):
            raise InvalidRequest("`after` must be a path below `path`")
        return path[len(self._shown) + 1 :].split(b"/")

    def _was_before(self, here: list[bytes]) -> bool:
        return bool(self._skipped) and here <= self._skipped

    def _is_full(self, here: list[bytes]) -> bool:
        if self._counted < self._most and time.monotonic() < self._deadline:
            return False
        self.next = self.uri(b"/".join(here))
        return True

    def _list(self, names: list[bytes]) -> _Names:
        """Return the names in a directory that are not behind us, in reverse."""
        below = b"/".join(names)
        depth = len(names)
        if depth > MAX_DEPTH:
            self.refuse(below, InvalidRequest(f"directories deeper than {MAX_DEPTH} levels are not entered"))
            return []
        try:
            found = self._files.walk(self.path(below) if below else self.root or b"/", self._options)
        except (OSError, RpcError) as error:
            if not names:
                raise
            self.refuse(below, error)
            return []
        # A page that ended in this directory had all of its others, and the names up to there.
        was_begun = self._skipped[:depth] == names and depth < len(self._skipped)
        self._note(below, found, others=not was_begun)
        listed = self._named(found.entries)
        first = self._skipped[depth] if was_begun else b""
        listed = [each for each in reversed(listed) if each[0] >= first]
        if found.truncated or self._pending + len(listed) > _PENDING:
            self.refuse(below, InvalidRequest("the directory has too many names; only a part was looked at"))
            del listed[: max(self._pending + len(listed) - _PENDING, 0)]
        self._pending += len(listed)
        return listed

    def _note(self, below: bytes, found: Walk, *, others: bool) -> None:
        """Keep what could not be listed in a directory, and the others in it if they are still to be told."""
        for uri, text in found.errors:
            if text != NO_ENTRY:
                self.errors.append(FsWalkError(path=self.uri(below), message=text))
            elif others:
                name = PathUri.parse(uri).native().rpartition(b"/")[2]
                self.others.append(below + b"/" + name if below else name)
            else:
                continue
            self._counted += 1

    @staticmethod
    def _named(entries: Sequence[tuple[str, bool]]) -> _Names:
        names: _Names = []
        for begin in range(0, len(entries), _TURNS):
            for uri, is_directory in entries[begin : begin + _TURNS]:
                names.append((PathUri.parse(uri).native().rpartition(b"/")[2], is_directory))
            sleep(0)
        return names
