"""What is asked about whole trees; most of it page after page.

All but the plain listing of `files.walk` are extensions, announced in `environmentInfo`; another server
refuses them as unknown methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from execserver.client.errors import ProtocolViolation
from execserver.client.operations.call import Operation, ask
from execserver.client.operations.pages import MOST_BARREN, MOST_BARREN_OF_A_SEARCH, Archive, Pages
from execserver.client.rules import wire
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol.batches import (
    FsListEntry,
    FsListParams,
    FsListResponse,
    FsReadManyFile,
    FsReadManyParams,
    FsWriteEntry,
    FsWriteError,
    FsWriteManyParams,
    FsWritePartParams,
)
from execserver.protocol.files import FsWalkEntry, FsWalkError
from execserver.protocol.own_methods import (
    FS_EXTRACT,
    FS_GLOB,
    FS_HASH,
    FS_LIST,
    FS_READ_MANY,
    FS_SEARCH,
    FS_WRITE_MANY,
    FS_WRITE_PART,
)
from execserver.protocol.trees import (
    MAX_PAGE,
    ExtractPosition,
    FsExtractParams,
    FsGlobParams,
    FsGlobResponse,
    FsHashEntry,
    FsHashParams,
    FsHashResponse,
    FsSearchMatch,
    FsSearchParams,
    FsSearchResponse,
)

CHUNK_BYTES: Final = 1024 * 1024
"""The most of an archive in one request."""

_BLOCK: Final = 512  # of a tar archive


def hash_pages(
    path: RemotePath, offset: int = 0, length: int | None = None, sandbox: Sandbox = None
) -> Pages[FsHashEntry]:
    """Hash a file, or a part of it, or every regular file below a directory."""
    first = FsHashParams(
        path=wire.path_uri(path), offset=offset, length=length, sandbox=wire.sandbox_context(sandbox)
    )

    def fetch(mark: Any) -> Operation[FsHashResponse]:
        return (yield from ask(FS_HASH, msgspec.structs.replace(first, after=mark), resend=True))

    return Pages(fetch, MOST_BARREN)


def glob_pages(
    path: RemotePath, pattern: str, gitignore: bool = False, sandbox: Sandbox = None
) -> Pages[FsWalkEntry]:
    """Find files and directories whose names below a directory match."""
    first = FsGlobParams(
        path=wire.path_uri(path), pattern=pattern, gitignore=gitignore, sandbox=wire.sandbox_context(sandbox)
    )

    def fetch(mark: Any) -> Operation[FsGlobResponse]:
        return (yield from ask(FS_GLOB, msgspec.structs.replace(first, after=mark)))

    return Pages(fetch, MOST_BARREN_OF_A_SEARCH)


def search_pages(
    path: RemotePath,
    pattern: str,
    *,
    literal: bool = False,
    ignore_case: bool = False,
    include: str | None = None,
    hidden: bool = False,
    gitignore: bool = False,
    sandbox: Sandbox = None,
) -> Pages[FsSearchMatch]:
    """Search a file, or the files below a directory, for lines that match."""
    first = FsSearchParams(
        path=wire.path_uri(path),
        pattern=pattern,
        literal=literal,
        ignore_case=ignore_case,
        include=include,
        hidden=hidden,
        gitignore=gitignore,
        sandbox=wire.sandbox_context(sandbox),
    )

    def fetch(mark: Any) -> Operation[_Matches]:
        return _Matches((yield from ask(FS_SEARCH, msgspec.structs.replace(first, after=mark))))

    return Pages(fetch, MOST_BARREN_OF_A_SEARCH)


class _Matches:
    """The page of a search in the form of the others."""

    def __init__(self, page: FsSearchResponse) -> None:
        self.entries = page.matches
        self.errors = page.errors
        self.next = page.next


def list_pages(
    path: RemotePath, sandbox: Sandbox = None, other: Callable[[bytes], None] | None = None
) -> Pages[FsListEntry]:
    """List a file, or a directory with all that is below it; `other` gets the names of what is no entry."""
    first = FsListParams(
        path=wire.path_uri(path), max_entries=MAX_PAGE, sandbox=wire.sandbox_context(sandbox)
    )

    def fetch(mark: Any) -> Operation[FsListResponse]:
        page = yield from ask(FS_LIST, msgspec.structs.replace(first, after=mark), resend=True)
        if other is not None:
            for name in page.others:
                other(bytes(name))
        return page

    return Pages(fetch, MOST_BARREN)


def archive_pieces(path: RemotePath, errors: list[FsWalkError], sandbox: Sandbox = None) -> Archive:
    """Pack a file, or what is in a directory; what could not be packed is added to `errors`."""
    return Archive(wire.path_uri(path), errors, wire.sandbox_context(sandbox))


class Extraction:
    """Unpacks an archive into a directory as its pieces come."""

    def __init__(self, path: RemotePath, sandbox: Sandbox = None) -> None:
        self.errors: list[FsWalkError] = []
        self.done = False
        self._root = wire.path_uri(path)
        self._context = wire.sandbox_context(sandbox)
        self._position: ExtractPosition | None = None
        self._rest = b""

    def feed(self, piece: bytes) -> Operation[None]:
        """Take a piece of any size, and send what makes a whole chunk; behind the archive's end nothing."""
        for begin in range(0, len(piece), CHUNK_BYTES):
            self._rest += piece[begin : begin + CHUNK_BYTES]
            while not self.done and len(self._rest) >= CHUNK_BYTES:
                yield from self._send()

    def finish(self) -> Operation[list[FsWalkError]]:
        """Send the rest; return what could not be unpacked.

        Raises ValueError for an archive that ends too early.
        """
        while not self.done:
            yield from self._send()
        return self.errors

    def _send(self) -> Operation[None]:
        chunk = self._rest[: min(CHUNK_BYTES, len(self._rest) // _BLOCK * _BLOCK)]
        params = FsExtractParams(path=self._root, chunk=chunk, position=self._position, sandbox=self._context)
        page = yield from ask(FS_EXTRACT, params)
        if page.consumed > len(chunk):
            raise ProtocolViolation("the server has unpacked more than it was sent")
        self.errors += page.errors
        self._position = page.position
        self._rest = self._rest[page.consumed :]
        self.done = page.done
        if not page.done and not page.consumed:
            raise ValueError("the archive ends too early")


def read_many(
    path: RemotePath, names: Sequence[bytes], sandbox: Sandbox = None
) -> Operation[tuple[FsReadManyFile, ...]]:
    """Read files below a directory; the answer may be about the first only."""
    params = FsReadManyParams(
        path=wire.path_uri(path), names=tuple(names), sandbox=wire.sandbox_context(sandbox)
    )
    files = (yield from ask(FS_READ_MANY, params, resend=True)).files
    if len(files) > len(names) or (names and not files):
        raise ProtocolViolation(f"asked for {len(names)} files, got {len(files)}")
    return files


def write_many(
    path: RemotePath, entries: Sequence[FsWriteEntry], sandbox: Sandbox = None, timeout: float | None = None
) -> Operation[tuple[FsWriteError, ...]]:
    """Make, replace and remove what is below a directory; return what failed."""
    params = FsWriteManyParams(
        path=wire.path_uri(path), entries=tuple(entries), sandbox=wire.sandbox_context(sandbox)
    )
    return (yield from ask(FS_WRITE_MANY, params, resend=True, timeout=timeout)).errors


def write_part(path: RemotePath, entry: FsWriteEntry, sandbox: Sandbox = None) -> Operation[None]:
    """Add a piece to a file below a directory; of many, whoever sends them in order has several under way."""
    yield from ask(FS_WRITE_PART, part_params(path, entry, sandbox), resend=True)


def part_params(path: RemotePath, entry: FsWriteEntry, sandbox: Sandbox = None) -> FsWritePartParams:
    """Return the request that adds a piece to a file below a directory: what an entry with `part` says."""
    return FsWritePartParams(
        path=wire.path_uri(path),
        name=entry.name,
        part=entry.part or b"",
        offset=entry.offset,
        size=entry.size,
        mode=entry.mode,
        modified_at_ns=entry.modified_at_ns,
        chunk=entry.content or b"",
        sandbox=wire.sandbox_context(sandbox),
    )
