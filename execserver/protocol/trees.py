"""Params and results of what is asked about whole trees, page by page (extensions of this server)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from execserver.protocol.files import NANOSECONDS, FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext

MAX_PAGE = 10_000
PAGE = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE, title="u16")]


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
