"""Lists a directory with everything below it, level by level, within limits (wire contract, section 12)."""

from __future__ import annotations

import errno
import os
import stat

from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest, os_error_text
from execserver.protocol.paths import PathUri, encode_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.yielding import Pause

MAX_DEPTH = 64
MAX_DIRECTORIES = 10_000
MAX_ENTRIES = 50_000
NO_ENTRY = "it is no file, directory or symlink"  # the error of such a name, where symlinks are listed


class WalkOptions:
    """The limits of a walk, and which directories it enters.

    Raises InvalidRequest for limits that the contract does not allow.
    """

    __slots__ = ("follow_links", "list_links", "max_depth", "max_directories", "max_entries", "prune_hidden")

    def __init__(
        self,
        max_depth: int,
        max_directories: int,
        max_entries: int,
        follow_links: bool,
        prune_hidden: bool,
        list_links: bool = False,
    ) -> None:
        if not max_directories or not max_entries:
            raise InvalidRequest("filesystem walk limits must be greater than zero")
        if max_depth > MAX_DEPTH or max_directories > MAX_DIRECTORIES or max_entries > MAX_ENTRIES:
            raise InvalidRequest(
                f"filesystem walk limits exceed maximums: depth={MAX_DEPTH}, "
                f"directories={MAX_DIRECTORIES}, entries={MAX_ENTRIES}"
            )
        self.max_depth = max_depth
        self.max_directories = max_directories
        self.max_entries = max_entries
        self.follow_links = follow_links
        self.prune_hidden = prune_hidden
        self.list_links = list_links  # as files


class Walk:
    """One walk and its findings.

    `entries` are (URI, is_directory) in breadth-first order, each directory sorted by name; `errors` are
    (URI, text) of what could not be read; `truncated` is True if a limit left something out.
    """

    def __init__(self, options: WalkOptions, pause: Pause = no_pause) -> None:
        self.entries: list[tuple[str, bool]] = []
        self.errors: list[tuple[str, str]] = []
        self.truncated = False
        self._options = options
        self._pause = pause
        self._counted = 0  # entries, and errors that are about an entry
        self._directories = 1
        self._seen: set[tuple[int, int]] = set()  # file identities; only needed if symlinks are followed
        self._level: list[tuple[bytes, str]] = []  # path and URI of the directories of the next level

    def run(self, root: bytes) -> None:
        """Walk from a directory; anything else gives no entries.  Raises OSError if the root is missing."""
        status, is_link = self._look(root)
        if (is_link and not self._options.follow_links) or not stat.S_ISDIR(status.st_mode):
            return
        self._seen.add((status.st_dev, status.st_ino))
        uri = PathUri.from_native(root).uri
        level = [(root.rstrip(b"/"), uri.removesuffix("/"))]
        for depth in range(self._options.max_depth + 1):
            for path, uri in level:
                if not self._list(path, uri, enter=depth < self._options.max_depth):
                    return
                self._pause()
            level, self._level = self._level, []

    def _list(self, path: bytes, uri: str, enter: bool) -> bool:
        """List one directory; return False if the limit of entries is reached."""
        try:
            found, searchable = self._scan(path or b"/")
        except OSError as error:
            self.errors.append((uri or "file:///", os_error_text(error.errno or errno.EIO)))
            return True
        for entry in found:
            is_link = entry.is_symlink()
            is_directory = self._kind(entry, is_link)
            if is_directory is None:
                self._note_other(entry, is_link, uri)
                continue
            if self._counted == self._options.max_entries:
                self.truncated = True
                return False
            self._counted += 1
            child = f"{uri}/{encode_segment(entry.name)}"
            if not searchable:
                self.errors.append((child, os_error_text(errno.EACCES)))
                continue
            self.entries.append((child, is_directory))
            if is_directory and enter:
                self._enter(path, entry, child)
        return True

    def _look(self, root: bytes) -> tuple[os.stat_result, bool]:
        """Return the status of what the root leads to, and whether the root is a symlink."""
        return os.stat(root), stat.S_ISLNK(os.lstat(root).st_mode)

    def _scan(self, path: bytes) -> tuple[list[os.DirEntry[bytes]], bool]:
        """Return the sorted entries of a directory, and whether the right to search it is there."""
        with os.scandir(path) as entries:
            found = sorted(entries, key=_name)
        # Without that right the names can be read, but nothing about what they stand for.
        return found, os.access(path, os.X_OK, effective_ids=True)

    def _kind(self, entry: os.DirEntry[bytes], is_link: bool) -> bool | None:
        """Return True to list an entry as a directory, False as a file, None to skip it."""
        if not is_link:
            if entry.is_file(follow_symlinks=False):
                return False
            return True if entry.is_dir(follow_symlinks=False) else None
        if self._options.list_links:
            return False
        try:
            return True if self._options.follow_links and entry.is_dir() else None
        except OSError:
            return None

    def _note_other(self, entry: os.DirEntry[bytes], is_link: bool, uri: str) -> None:
        """Note what is no file, directory or symlink, where a whole tree is listed."""
        if self._options.list_links and not is_link and len(self.errors) < self._options.max_entries:
            self.errors.append((f"{uri}/{encode_segment(entry.name)}", NO_ENTRY))

    def _enter(self, parent: bytes, entry: os.DirEntry[bytes], uri: str) -> None:
        """Add a directory to the next level unless it is pruned, was seen already, or exceeds the limit."""
        if self._options.prune_hidden and entry.name.startswith(b"."):
            return
        identity = None
        if self._options.follow_links:
            try:
                status = os.stat(entry.path)
            except OSError:
                return  # gone meanwhile
            identity = (status.st_dev, status.st_ino)
            if identity in self._seen:
                return
        if self._directories == self._options.max_directories:
            self.truncated = True
            return
        self._directories += 1
        if identity is not None:
            self._seen.add(identity)
        self._level.append((parent + b"/" + entry.name, uri))


def _name(entry: os.DirEntry[bytes]) -> bytes:
    return entry.name
