"""Params and results of what is asked about whole trees, page by page (extensions of this server)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from execserver.protocol.files import MODE, NANOSECONDS, FsWalkEntry, FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, Base64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext

MAX_PAGE = 10_000
PAGE = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE, title="u16")]
MATCHES = Annotated[int, msgspec.Meta(ge=1, le=2000, title="u16")]


class FsHashParams(Record, frozen=True, kw_only=True):
    """A file, or a directory with every regular file below it; `offset` and `length` are for a file."""

    path: PathUri
    after: PathUri | None = None
    max_entries: PAGE = 1000
    offset: U64 = 0
    length: U64 | None = None
    sandbox: FileSystemSandboxContext | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.length)


class FsHashEntry(Record, frozen=True, kw_only=True):
    """A regular file and the SHA-256 of its content, or of the part asked for, in hexadecimal digits."""

    path: PathUri
    size: U64
    modified_at_ns: NANOSECONDS
    mode: U64
    sha256: str


class FsHashResponse(Record, frozen=True, kw_only=True):
    """One page; `next`, if there may be more, is `after` of the request for the next one."""

    entries: tuple[FsHashEntry, ...]
    errors: tuple[FsWalkError, ...]
    next: PathUri | None


class FsGlobParams(Record, frozen=True, kw_only=True):
    """The directory to search, and the pattern of paths below it; `gitignore`: without what git ignores."""

    path: PathUri
    pattern: str
    gitignore: bool = False
    after: PathUri | None = None
    max_entries: PAGE = 1000
    sandbox: FileSystemSandboxContext | None = None


class FsGlobResponse(Record, frozen=True, kw_only=True):
    """One page of what matches; `next` as in `fs/hash`."""

    entries: tuple[FsWalkEntry, ...]
    errors: tuple[FsWalkError, ...]
    next: PathUri | None


class FsSearchParams(Record, frozen=True, kw_only=True):
    """A file, or a directory whose files to search, and the regular expression to search their lines for."""

    path: PathUri
    pattern: str
    literal: bool = False
    ignore_case: bool = False
    include: str | None = None
    hidden: bool = False
    gitignore: bool = False
    after: PathUri | None = None
    max_matches: MATCHES = 1000
    sandbox: FileSystemSandboxContext | None = None


class FsSearchMatch(Record, frozen=True, kw_only=True):
    """A line with a match: its number, the first match's character (both from 1), and its text."""

    path: PathUri
    line: U64
    column: U64
    text: str


class FsSearchResponse(Record, frozen=True, kw_only=True):
    """One page of matches; `next` as in `fs/hash`."""

    matches: tuple[FsSearchMatch, ...]
    errors: tuple[FsWalkError, ...]
    next: PathUri | None


class ArchivePosition(Record, frozen=True, kw_only=True):
    """Where a page of an archive ended: its last entry, and how much of the content has been sent."""

    path: PathUri
    offset: U64
    size: U64

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.size)


class FsArchiveParams(Record, frozen=True, kw_only=True):
    """The file, or the directory whose content to pack, and where the last page ended."""

    path: PathUri
    position: ArchivePosition | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsArchiveResponse(Record, frozen=True, kw_only=True):
    """A piece of a tar archive; unless `next` is null, more follows behind that position."""

    chunk: Base64
    errors: tuple[FsWalkError, ...]
    next: ArchivePosition | None


class ExtractPosition(Record, frozen=True, kw_only=True):
    """The file of an archive in whose content a chunk ended; `refused` if its content is passed over."""

    path: PathUri
    offset: U64
    size: U64
    mode: MODE
    modified_at_ns: NANOSECONDS
    refused: bool

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.size)


class FsExtractParams(Record, frozen=True, kw_only=True):
    """The directory to unpack into, the next chunk of the archive, and where the last one ended."""

    path: PathUri
    chunk: Base64
    position: ExtractPosition | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsExtractResponse(Record, frozen=True, kw_only=True):
    """How many bytes were used (the rest is sent again with what follows), and whether that was the end."""

    consumed: U64
    position: ExtractPosition | None
    errors: tuple[FsWalkError, ...]
    done: bool
