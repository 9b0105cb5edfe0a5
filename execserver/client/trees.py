"""What a client asks about whole trees: methods of `RemoteFiles` that fetch page after page.

They are extensions, announced in `environmentInfo`; another server refuses them as unknown methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from execserver.client import wire
from execserver.client.errors import ProtocolViolation
from execserver.client.session import Session
from execserver.client.wire import RemotePath, Sandbox
from execserver.protocol.batches import (
    FsListEntry,
    FsListParams,
    FsReadManyFile,
    FsReadManyParams,
    FsWriteEntry,
    FsWriteError,
    FsWriteManyParams,
)
from execserver.protocol.files import FsWalkEntry, FsWalkError
from execserver.protocol.own_methods import (
    FS_ARCHIVE,
    FS_EXTRACT,
    FS_GLOB,
    FS_HASH,
    FS_LIST,
    FS_READ_MANY,
    FS_SEARCH,
    FS_WRITE_MANY,
)
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import (
    MAX_PAGE,
    ArchivePosition,
    ExtractPosition,
    FsArchiveParams,
    FsExtractParams,
    FsGlobParams,
    FsHashEntry,
    FsHashParams,
    FsSearchMatch,
    FsSearchParams,
    FsSearchResponse,
)

_CHUNK_BYTES = 1024 * 1024  # of an archive, in one request
_MOST_BARREN = 1000  # pages of a listing that follow each other and have no entry

Entry = TypeVar("Entry", covariant=True)


class _Page(Protocol[Entry]):
    @property
    def entries(self) -> tuple[Entry, ...]: ...
    @property
    def errors(self) -> tuple[FsWalkError, ...]: ...
    @property
    def next(self) -> PathUri | None: ...


class TreeMethods:
    """Each yields what was found and, as `FsWalkError`, what could not be read, page after page.

    Raises `ProtocolViolation` for a server whose pages do not go on.
    """

    _session: Session

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: Sandbox = None
    ) -> Iterator[FsHashEntry | FsWalkError]:
        """Hash a file, or a part of it, or every regular file below a directory."""
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        return _paged(
            lambda after: self._session.call(
                FS_HASH,
                FsHashParams(path=root, after=after, offset=offset, length=length, sandbox=context),
                resend=True,
            )
        )

    def glob(
        self, path: RemotePath, pattern: str, *, gitignore: bool = False, sandbox: Sandbox = None
    ) -> Iterator[FsWalkEntry | FsWalkError]:
        """Find files and directories below a directory; `pattern` is relative to it.

        With `gitignore` what git would ignore is left out, and `.git`.
        """
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        return _paged(
            lambda after: self._session.call(
                FS_GLOB,
                FsGlobParams(path=root, pattern=pattern, gitignore=gitignore, after=after, sandbox=context),
            )
        )

    def search(
        self,
        path: RemotePath,
        pattern: str,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: str | None = None,
        hidden: bool = False,
        gitignore: bool = False,
        sandbox: Sandbox = None,
    ) -> Iterator[FsSearchMatch | FsWalkError]:
        """Search a file, or the files below a directory, for lines with a match of a regular expression.

        With `gitignore` files that git would ignore are left out.
        """
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

        def ask(after: PathUri | None) -> _Matches:
            return _Matches(self._session.call(FS_SEARCH, msgspec.structs.replace(first, after=after)))

        return _paged(ask)

    def archive(
        self, path: RemotePath, errors: list[FsWalkError], *, sandbox: Sandbox = None
    ) -> Iterator[bytes]:
        """Yield the pieces of a tar archive of a file or of what is in a directory.

        What could not be packed is added to `errors`.
        """
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        position: ArchivePosition | None = None
        while True:
            params = FsArchiveParams(path=root, position=position, sandbox=context)
            page = self._session.call(FS_ARCHIVE, params)
            errors += page.errors
            yield page.chunk
            if page.next is None:
                return
            if page.next == position:
                raise ProtocolViolation("the server sends the same page again and again")
            position = page.next

    def extract(
        self, path: RemotePath, pieces: Iterable[bytes], *, sandbox: Sandbox = None
    ) -> list[FsWalkError]:
        """Unpack a tar archive into a directory; return what could not be unpacked.

        Raises ValueError for an archive that ends too early.
        """
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        position: ExtractPosition | None = None
        errors: list[FsWalkError] = []
        rest, source, ended = b"", iter(pieces), False
        while True:
            while not ended and len(rest) < _CHUNK_BYTES:
                piece = next(source, None)
                ended = piece is None
                rest += piece or b""
            chunk = rest[: min(_CHUNK_BYTES, len(rest) // 512 * 512)]
            params = FsExtractParams(path=root, chunk=chunk, position=position, sandbox=context)
            page = self._session.call(FS_EXTRACT, params)
            errors += page.errors
            position = page.position
            rest = rest[page.consumed :]
            if page.done:
                return errors
            if not page.consumed:
                raise ValueError("the archive ends too early")

    def list(self, path: RemotePath, *, sandbox: Sandbox = None) -> Iterator[FsListEntry | FsWalkError]:
        """List a file, or a directory with all that is below it; names are relative, its own is empty."""
        root, context = wire.path_uri(path), wire.sandbox_context(sandbox)
        after: bytes | None = None
        barren = 0
        while True:
            params = FsListParams(path=root, after=after, max_entries=MAX_PAGE, sandbox=context)
            page = self._session.call(FS_LIST, params, resend=True)
            yield from page.entries
            yield from page.errors
            if page.next is None:
                return
            barren = 0 if page.entries or page.errors else barren + 1
            if page.next == after or barren > _MOST_BARREN:
                raise ProtocolViolation("the server sends pages without anything new")
            after = page.next

    def read_many(
        self, path: RemotePath, names: Sequence[bytes], *, sandbox: Sandbox = None
    ) -> tuple[FsReadManyFile, ...]:
        """Read files below a directory, each of 1 MiB at most; the answer may be about the first only."""
        params = FsReadManyParams(
            path=wire.path_uri(path), names=tuple(names), sandbox=wire.sandbox_context(sandbox)
        )
        files = self._session.call(FS_READ_MANY, params, resend=True).files
        if len(files) > len(names) or (names and not files):
            raise ProtocolViolation(f"asked for {len(names)} files, got {len(files)}")
        return files

    def write_many(
        self, path: RemotePath, entries: Sequence[FsWriteEntry], *, sandbox: Sandbox = None
    ) -> tuple[FsWriteError, ...]:
        """Make, replace and remove what is below a directory, each entry as a whole; return what failed."""
        params = FsWriteManyParams(
            path=wire.path_uri(path), entries=tuple(entries), sandbox=wire.sandbox_context(sandbox)
        )
        return self._session.call(FS_WRITE_MANY, params, resend=True).errors


class _Matches:
    """The page of a search in the form of the others."""

    def __init__(self, page: FsSearchResponse) -> None:
        self.entries = page.matches
        self.errors = page.errors
        self.next = page.next


def _paged(ask: Callable[[PathUri | None], _Page[Entry]]) -> Iterator[Entry | FsWalkError]:
    after: PathUri | None = None
    while True:
        page = ask(after)
        yield from page.entries
        yield from page.errors
        if page.next is None:
            return
        if page.next == after:
            raise ProtocolViolation("the server sends the same page again and again")
        after = page.next
