"""A tree of a box, by the extensions of its server.  Nothing that the box tells is taken without a look.

Requests may be sent again after a lost connection: what they do is the same the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from execserver.box.shown import shown
from execserver.box.trees.below import BadName, parts
from execserver.box.trees.here import Changed
from execserver.box.trees.native import native
from execserver.box.trees.nodes import (
    LARGEST_FILE,
    MAX_NAME_BYTES,
    MAX_NODES,
    Excluded,
    Kind,
    Node,
    TooLarge,
    Tree,
    is_fresh,
    is_part,
    part_name,
)
from execserver.box.trees.others import Others
from execserver.client.errors import NotFoundError, ProtocolViolation, RequestFailed, TransportClosed
from execserver.eventloop.locks import BoundedSemaphore
from execserver.protocol.batches import FsListEntry, FsNodeKind, FsReadManyFile, FsWriteEntry, FsWriteError
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import FsHashEntry

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.files import RemoteFile

BATCH_BYTES: Final = 1024 * 1024  # of content in one request
BATCH_NAMES: Final = 500
_KINDS: Final = {kind.value: kind for kind in Kind}
_MAX_ERRORS: Final = 10_000  # of a listing
_MAX_ANSWER: Final = 4 * BATCH_BYTES
_HELD_BESIDE: Final = 16  # bytes that a name counts besides its own, whether it takes part or not
_TRIES: Final = 20  # of a block, each with a handle of its own


class BoxTree:
    """What is at one absolute path of a box, and below it."""

    def __init__(self, client: ExecServerClient, top: bytes) -> None:
        self._files = client.files
        self._takes_parts = client.extensions.fs_write_part
        self._top = top
        folder, _, self._base = top.rpartition(b"/")
        self._folder = PathUri.from_native(folder or b"/")

    def tree(
        self, excluded: Excluded, say: Callable[[str], None], others: Others, *, keep_parts: bool
    ) -> tuple[Tree, bool]:
        """Return the tree, empty if there is nothing, and whether all of it could be read.

        What is no file, folder or link is counted in `others`.  Raises TooLarge and what the Python client
        raises.
        """
        found: Tree = {}
        errors, held = 0, 0

        def other(name: bytes) -> None:
            if not (is_fresh(name) or (not keep_parts and is_part(name)) or excluded(name)):
                others.add(self._top.rstrip(b"/") + b"/" + name)

        try:
            for each in self._files.list(PathUri.from_native(self._top), other=other):
                if isinstance(each, FsWalkError):
                    errors += 1
                    if errors > _MAX_ERRORS:
                        raise TooLarge(f"more than {_MAX_ERRORS} names that cannot be read")
                    say(f"{shown(native(each.path), 300)}: {shown(each.message, 300)}")
                    continue
                held += len(each.name) + len(each.target or b"") + _HELD_BESIDE
                if len(found) >= MAX_NODES or held > MAX_NAME_BYTES:
                    raise TooLarge(f"more than {MAX_NODES} names")
                add(found, each, excluded, keep_parts=keep_parts)
        except NotFoundError:
            return {}, True
        return found, not errors

    def digest(self, name: bytes, offset: int, length: int) -> str:
        """Return the SHA-256 of some bytes of a file, in hexadecimal digits."""
        return self._digest(self.path(name), offset, length)

    def part_size(self, name: bytes) -> int:
        """Return how many bytes of a file have been collected beside it; 0 if none."""
        try:
            found = next(iter(self._files.list(self._part(name))), None)
        except NotFoundError:
            return 0
        return found.size if isinstance(found, FsListEntry) and found.kind is FsNodeKind.FILE else 0

    def part_digest(self, name: bytes, length: int) -> str:
        """Return the SHA-256 of the first bytes of what has been collected beside a file."""
        return self._digest(self._part(name), 0, length)

    def _part(self, name: bytes) -> PathUri:
        folder, slash, last = self.path(name).native().rpartition(b"/")
        return PathUri.from_native(folder + slash + part_name(last))

    def _digest(self, path: PathUri, offset: int, length: int) -> str:
        each = next(iter(self._files.hash(path, offset=offset, length=length)), None)
        if each is None:
            raise ProtocolViolation("there is no hash in the answer")
        if not isinstance(each, FsHashEntry):
            raise Changed("it is a folder by now")
        return each.sha256

    def digests(self) -> dict[bytes, str]:
        """Return the hashes of all files below the top."""
        found: dict[bytes, str] = {}
        prefix = self._top.rstrip(b"/") + b"/"
        for number, each in enumerate(self._files.hash(PathUri.from_native(self._top))):
            path = native(each.path)
            if number >= MAX_NODES:
                raise TooLarge(f"more than {MAX_NODES} names")
            if isinstance(each, FsHashEntry) and path.startswith(prefix):
                found[path[len(prefix) :]] = each.sha256
        return found

    def write(self, entries: Sequence[FsWriteEntry]) -> list[tuple[FsWriteEntry, str]]:
        """Write entries, whose names are below the top; return those that failed, and why."""
        errors = self._files.write_many(self._folder, entries)
        return [(_entry_of(entries, each), shown(each.message, 300)) for each in errors[: len(entries)]]

    def add(self, pieces: Iterable[FsWriteEntry]) -> str:
        """Add pieces to a file below the top, in their order; return why that failed, or nothing."""
        try:
            if self._takes_parts:
                self._files.write_parts(self._folder, pieces)
                return ""
        except RequestFailed as error:
            return shown(error.message, 300)
        for piece in pieces:
            for _, text in self.write([piece]):
                return text
        return ""

    def name(self, name: bytes) -> bytes:
        """Return a name below the top as `write` takes it."""
        return self._base + b"/" + name if name else self._base

    def read(self, names: Sequence[bytes]) -> tuple[FsReadManyFile, ...]:
        """Return the contents of the first of some files."""
        files = self._files.read_many(self._folder, [self.name(name) for name in names])
        if sum(len(each.content or b"") for each in files) > _MAX_ANSWER:
            raise ProtocolViolation("the box sends more than what was asked for")
        return files

    def path(self, name: bytes) -> PathUri:
        """Return the path of a name below the top."""
        return PathUri.from_native(self._top.rstrip(b"/") + b"/" + name if name else self._top)

    def open(self, name: bytes) -> Blocks:
        """Return what reads a file block by block, over lost connections."""
        return Blocks(lambda: self._files.open_file(self.path(name)))


class Blocks:
    """Reads blocks, several at a time; a handle ends with its connection, and then another one is opened."""

    def __init__(self, opening: Callable[[], RemoteFile]) -> None:
        self._opening = opening
        self._file: RemoteFile | None = None
        self._one_opens = BoundedSemaphore()

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset, fewer at the end of the file."""
        for _ in range(_TRIES):
            file, is_fresh = self._opened()
            try:
                return file.read_block(offset, size)
            except TransportClosed:
                self._forget(file)
            except NotFoundError:
                self._forget(file)
                if is_fresh:
                    raise
        raise ProtocolViolation("the box ends the connection each time a file is read")

    def _opened(self) -> tuple[RemoteFile, bool]:
        with self._one_opens:
            if self._file is not None:
                return self._file, False
            self._file = self._opening()
            return self._file, True

    def _forget(self, file: RemoteFile) -> None:
        if self._file is file:
            self._file = None

    def close(self) -> None:
        """Close the handle."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except RequestFailed:
                pass  # it was of an earlier connection


def add(found: Tree, entry: FsListEntry, excluded: Excluded, *, keep_parts: bool) -> None:
    """Take a listed name into a tree.

    Raises ProtocolViolation for one that could lead elsewhere, or that was listed before: else a listing
    could go on for ever without a new name.
    """
    name = bytes(entry.name)
    try:
        clean = b"/".join(parts(name)) == name
    except BadName:
        clean = False
    if not clean or entry.kind.value not in _KINDS:
        raise ProtocolViolation(f"the box lists {shown(name, 200)}, which is no name in a tree")
    if is_fresh(name) or (is_part(name) and not keep_parts) or (name and excluded(name)):
        return
    if name in found:
        raise ProtocolViolation(f"the box lists {shown(name, 200) or 'the folder itself'} twice")
    if entry.size > LARGEST_FILE:
        raise ProtocolViolation(f"the box lists {shown(name, 200)} with {entry.size} bytes")
    found[name] = Node(
        _KINDS[entry.kind.value], entry.size, entry.mode, entry.modified_at_ns, bytes(entry.target or b"")
    )


def _entry_of(entries: Sequence[FsWriteEntry], error: FsWriteError) -> FsWriteEntry:
    if error.index >= len(entries):
        raise ProtocolViolation("the box tells of an entry that it was not sent")
    return entries[error.index]
