"""Params, results and the notification of watched folders (extensions of this server)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.record import U64, Record, refuse_beyond_u64
from execserver.protocol.sandbox import FileSystemSandboxContext

COALESCE_MS = Annotated[int, msgspec.Meta(ge=0, le=10_000, title="u16")]


class FsWatchParams(Record, frozen=True, kw_only=True):
    """The directory to watch, with all below it unless `recursive` is false.

    `watch_id` is the client's name for the watch.
    """

    watch_id: str
    path: PathUri
    recursive: bool = True
    coalesce_ms: COALESCE_MS = 100
    sandbox: FileSystemSandboxContext | None = None


class FsWatchResponse(Record, frozen=True, kw_only=True):
    """The watch: how many directories are watched now, and those that cannot be.

    `local` is false where other machines may change files without this one being told.
    """

    watch_id: str
    folders: U64
    local: bool
    errors: tuple[FsWalkError, ...]


class FsWatchResumeParams(Record, frozen=True, kw_only=True):
    """The last batch that the client has got, 0 for none."""

    watch_id: str
    after_seq: U64

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.after_seq)


class FsWatchResumeResponse(Record, frozen=True, kw_only=True):
    """The last batch that was made so far; those after `after_seq` follow."""

    watch_id: str
    last_seq: U64


class FsUnwatchParams(Record, frozen=True, kw_only=True):
    """Which watch is over."""

    watch_id: str


class FsUnwatchResponse(Record, frozen=True, kw_only=True):
    """Empty: also for unknown ids."""


class FsChangeKind(Enum):
    """What has happened to a path."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    RENAMED = "renamed"
    ATTRIBUTES = "attributes"


class FsChange(Record, frozen=True, kw_only=True):
    """One change; `old_path` is set for a rename."""

    path: PathUri
    kind: FsChangeKind
    is_directory: bool
    old_path: PathUri | None = None


class FsChangesNotification(Record, frozen=True, kw_only=True):
    """What happened, in order.  After an `overflow` anything may have changed before these.

    `errors` are directories that are not watched.  With `ended` this is the last batch.  `reason` says why in
    both cases.
    """

    watch_id: str
    seq: U64
    changes: tuple[FsChange, ...]
    errors: tuple[FsWalkError, ...]
    overflow: bool
    ended: bool
    reason: str | None = None
