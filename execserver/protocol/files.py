"""Params and results of fs/* (wire contract, section 12).

If `follow_symlinks` is false, a symlink anywhere in the path is refused (no-symlinks mode).
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, USIZE, Base64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext

NANOSECONDS = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1, title="i64")]
MODE = Annotated[int, msgspec.Meta(ge=0, le=0o7777, title="u16")]


class FsReadFileParams(Record, frozen=True, kw_only=True):
    """The file to read."""

    path: PathUri
    follow_symlinks: bool | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsReadFileResponse(Record, frozen=True, kw_only=True):
    """The whole content."""

    data_base64: Base64


class FsOpenMode(enum.Enum):
    """What a file handle is for: reading, or writing after creating or truncating the file."""

    READ = "read"
    REPLACE = "replace"


class FsOpenParams(Record, frozen=True, kw_only=True):
    """The file to open under an id the client chose, at most 32 bytes long."""

    handle_id: str
    path: PathUri
    mode: FsOpenMode = FsOpenMode.READ
    sandbox: FileSystemSandboxContext | None = None


class FsOpenResponse(Record, frozen=True, kw_only=True):
    """The handle, valid on this connection only."""

    handle_id: str


class FsReadBlockParams(Record, frozen=True, kw_only=True):
    """Which bytes of an open file to read; `len` is 1 to 1,048,576.

    `binary` (an extension of this server): the answer may have the binary form of messages.
    """

    handle_id: str
    offset: U64
    len: USIZE
    binary: bool = False

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset, self.len)


class FsReadBlockResponse(Record, frozen=True, kw_only=True):
    """The bytes read; `eof` when they are fewer than asked for."""

    chunk: Base64
    eof: bool


class FsWriteBlockParams(Record, frozen=True, kw_only=True):
    """Bytes to write into an open file at an offset."""

    handle_id: str
    offset: U64
    chunk: Base64

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.offset)


class FsWriteBlockResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsCloseParams(Record, frozen=True, kw_only=True):
    """The handle to close; an unknown one is no error."""

    handle_id: str


class FsCloseResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FileVersion(Record, frozen=True, kw_only=True):
    """How a file was when it was looked at: its time of modification and its size."""

    modified_at_ns: NANOSECONDS
    size: U64


class FsWriteFileParams(Record, frozen=True, kw_only=True):
    """The file to create or replace, and its content.

    `data_base64` stays text here: damage in it is an error of the file system family, with a text of its own.
    `atomic`: as a whole or not at all; the last three count with it only.
    """

    path: PathUri
    data_base64: str
    follow_symlinks: bool | None = None
    sandbox: FileSystemSandboxContext | None = None
    atomic: bool = False
    mode: MODE | None = None
    if_unchanged_since: FileVersion | None = None
    must_not_exist: bool = False


class FsWriteFileResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsCreateDirectoryParams(Record, frozen=True, kw_only=True):
    """The directory to make; missing parents too unless `recursive` is false."""

    path: PathUri
    recursive: bool | None = None
    follow_symlinks: bool | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsCreateDirectoryResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsGetMetadataParams(Record, frozen=True, kw_only=True):
    """The path to look at; symlinks are followed unless `follow_symlinks` is false."""

    path: PathUri
    follow_symlinks: bool | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsGetMetadataResponse(Record, frozen=True, kw_only=True):
    """What is there; `is_symlink` is about the path itself, all else about its target.  Times in ms."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    size: U64
    created_at_ms: int
    modified_at_ms: int


class FsCanonicalizeParams(Record, frozen=True, kw_only=True):
    """The path whose symlinks are to be resolved."""

    path: PathUri
    sandbox: FileSystemSandboxContext | None = None


class FsCanonicalizeResponse(Record, frozen=True, kw_only=True):
    """The path without symlinks."""

    path: PathUri


class FsReadDirectoryParams(Record, frozen=True, kw_only=True):
    """The directory to list."""

    path: PathUri
    sandbox: FileSystemSandboxContext | None = None


class FsReadDirectoryEntry(Record, frozen=True, kw_only=True):
    """One name in a directory, and the kind of what it leads to."""

    file_name: str
    is_directory: bool
    is_file: bool


class FsReadDirectoryResponse(Record, frozen=True, kw_only=True):
    """The names, unsorted, hidden ones included."""

    entries: tuple[FsReadDirectoryEntry, ...]


class FsRemoveParams(Record, frozen=True, kw_only=True):
    """What to remove; `recursive` and `force` (a missing path is fine) count as true when not given."""

    path: PathUri
    recursive: bool | None = None
    force: bool | None = None
    follow_symlinks: bool | None = None
    sandbox: FileSystemSandboxContext | None = None


class FsRemoveResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsCopyParams(Record, frozen=True, kw_only=True):
    """What to copy where; directories only with `recursive`."""

    source_path: PathUri
    destination_path: PathUri
    recursive: bool
    sandbox: FileSystemSandboxContext | None = None


class FsCopyResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsWalkOptions(Record, frozen=True, kw_only=True):
    """Where a walk stops: levels below the root, directories entered, entries listed."""

    max_depth: USIZE
    max_directories: USIZE
    max_entries: USIZE
    follow_directory_symlinks: bool
    prune_hidden_directories: bool = False

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.max_depth, self.max_directories, self.max_entries)


class FsWalkParams(Record, frozen=True, kw_only=True):
    """The directory to list with everything below it."""

    path: PathUri
    options: FsWalkOptions
    sandbox: FileSystemSandboxContext | None = None


class FsWalkEntryKind(enum.Enum):
    """What a walk lists; anything else is passed over."""

    DIRECTORY = "directory"
    FILE = "file"


class FsWalkEntry(Record, frozen=True, kw_only=True):
    """One file or directory found."""

    path: PathUri
    kind: FsWalkEntryKind


class FsWalkError(Record, frozen=True, kw_only=True):
    """A directory that could not be listed."""

    path: PathUri
    message: str


class FsWalkResponse(Record, frozen=True, kw_only=True):
    """What was found, level by level; `truncated` when a limit ended the walk."""

    entries: tuple[FsWalkEntry, ...]
    errors: tuple[FsWalkError, ...]
    truncated: bool


class FsWatchMissingParams(Record, frozen=True, kw_only=True):
    """Paths to tell about once they appear, and one to tell about once it changes; ids must grow."""

    watch_id: U64
    missing: tuple[PathUri, ...]
    present: PathUri | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.watch_id)


class FsWatchMissingResponse(Record, frozen=True, kw_only=True):
    """Whether the paths are watched from now on."""

    watching: bool


class FsMissingChangedNotification(Record, frozen=True, kw_only=True):
    """Something about the watched paths has changed; the watch is over."""

    watch_id: U64
