"""Params and results of what is done to many files in one request (extensions of this server).

Names are paths below the directory of the request, as bytes; an empty one is the directory itself.
"""

from __future__ import annotations

import enum

from execserver.protocol.files import MODE, NANOSECONDS, FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, Base64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.trees import PAGE


class FsNodeKind(enum.Enum):
    """What a name stands for; `absent` is for removals only."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    ABSENT = "absent"


class FsListParams(Record, frozen=True, kw_only=True):
    """A file, or a directory with everything below it."""

    path: PathUri
    after: Base64 | None = None
    max_entries: PAGE = 1000
    sandbox: FileSystemSandboxContext | None = None


class FsListEntry(Record, frozen=True, kw_only=True):
    """One name: `size` is that of a file, `target` the text of a symlink."""

    name: Base64
    kind: FsNodeKind
    size: U64
    modified_at_ns: NANOSECONDS
    mode: MODE
    target: Base64 | None = None


class FsListResponse(Record, frozen=True, kw_only=True):
    """One page; `next`, if there may be more, is `after` of the request for the next one.

    `others` are the names of devices, FIFOs and sockets, which are no entries.
    """

    entries: tuple[FsListEntry, ...]
    errors: tuple[FsWalkError, ...]
    next: Base64 | None
    others: tuple[Base64, ...] = ()


class FsReadManyParams(Record, frozen=True, kw_only=True):
    """A directory, and the files below it to read."""

    path: PathUri
    names: tuple[Base64, ...]
    sandbox: FileSystemSandboxContext | None = None


class FsReadManyFile(Record, frozen=True, kw_only=True):
    """The content of one file, or why there is none."""

    content: Base64 | None = None
    error: str | None = None


class FsReadManyResponse(Record, frozen=True, kw_only=True):
    """The first of the files asked for, in their order."""

    files: tuple[FsReadManyFile, ...]


class FsWriteEntry(Record, frozen=True, kw_only=True):
    """What a name is to be; a file without `content` only gets its permissions and time.

    `target` is the text of a symlink.  With `part`, a name beside the file, `content` belongs at `offset` of
    a file of `size` bytes, which is collected there until it is whole.
    """

    name: Base64
    kind: FsNodeKind
    mode: MODE | None = None
    modified_at_ns: NANOSECONDS | None = None
    content: Base64 | None = None
    target: Base64 | None = None
    part: Base64 | None = None
    offset: U64 = 0
    size: U64 = 0

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.size)


class FsWriteManyParams(Record, frozen=True, kw_only=True):
    """A directory, and what is to be below it."""

    path: PathUri
    entries: tuple[FsWriteEntry, ...]
    sandbox: FileSystemSandboxContext | None = None


class FsWritePartParams(Record, frozen=True, kw_only=True):
    """A piece of a file of `size` bytes below the directory `path`, as a `FsWriteEntry` with `part` has it.

    Its bytes are in `chunk`, and so may come without base64.
    """

    path: PathUri
    name: Base64
    part: Base64
    offset: U64
    size: U64
    mode: MODE | None = None
    modified_at_ns: NANOSECONDS | None = None
    chunk: Base64
    sandbox: FileSystemSandboxContext | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.size)


class FsWritePartResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsWriteError(Record, frozen=True, kw_only=True):
    """The number of an entry, from 0, and why it was not written."""

    index: U64
    message: str


class FsWriteManyResponse(Record, frozen=True, kw_only=True):
    """What could not be written; without errors everything was."""

    errors: tuple[FsWriteError, ...]
