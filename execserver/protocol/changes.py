"""Params and results of changes to names, modes and times of files (extensions of this server)."""

from __future__ import annotations

from execserver.protocol.files import MODE, NANOSECONDS, FileVersion
from execserver.protocol.paths import PathUri
from execserver.protocol.record import Record
from execserver.protocol.sandbox import FileSystemSandboxContext


class FsGetVersionParams(Record, frozen=True, kw_only=True):
    """The regular file to look at; links are followed."""

    path: PathUri
    sandbox: FileSystemSandboxContext | None = None


class FsGetVersionResponse(Record, frozen=True, kw_only=True):
    """What `ifUnchangedSince` takes, and the permissions."""

    version: FileVersion
    mode: MODE


class FsRenameParams(Record, frozen=True, kw_only=True):
    """What to rename, and to what; what is there is replaced unless `replace` is false."""

    source_path: PathUri
    destination_path: PathUri
    replace: bool = True
    sandbox: FileSystemSandboxContext | None = None


class FsRenameResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsChmodParams(Record, frozen=True, kw_only=True):
    """The file or directory, links followed, and its new permissions."""

    path: PathUri
    mode: MODE
    sandbox: FileSystemSandboxContext | None = None


class FsChmodResponse(Record, frozen=True, kw_only=True):
    """Empty."""


class FsTouchParams(Record, frozen=True, kw_only=True):
    """The file or directory, links followed, and its times; none stands for now."""

    path: PathUri
    modified_at_ns: NANOSECONDS | None = None
    accessed_at_ns: NANOSECONDS | None = None
    create: bool = True
    sandbox: FileSystemSandboxContext | None = None


class FsTouchResponse(Record, frozen=True, kw_only=True):
    """Empty."""
