"""Files by their paths: the fs/* methods under Python's names.

Every path is absolute or a `file:` URI, every `sandbox` the contract's object.
"""

from __future__ import annotations

from execserver.client.operations.call import Operation, ask
from execserver.client.rules import wire
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol import files as fs
from execserver.protocol import methods
from execserver.protocol.changes import (
    FsChmodParams,
    FsGetVersionParams,
    FsGetVersionResponse,
    FsRenameParams,
    FsTouchParams,
)
from execserver.protocol.own_methods import FS_CHMOD, FS_GET_VERSION, FS_RENAME, FS_TOUCH
from execserver.protocol.paths import PathUri

_WALK = fs.FsWalkOptions(
    max_depth=64, max_directories=10_000, max_entries=50_000, follow_directory_symlinks=False
)


def stat(path: RemotePath, sandbox: Sandbox = None) -> Operation[FsGetVersionResponse]:
    """Return the version and the permissions of a file (an extension)."""
    params = FsGetVersionParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
    return ask(FS_GET_VERSION, params)


def replace_file(
    path: RemotePath,
    content: bytes,
    *,
    mode: int | None = None,
    if_unchanged_since: fs.FileVersion | None = None,
    must_not_exist: bool = False,
    sandbox: Sandbox = None,
) -> Operation[None]:
    """Replace a file as a whole or not at all (an extension)."""
    params = fs.FsWriteFileParams(
        path=wire.path_uri(path),
        data_base64=wire.base64_text(content),
        sandbox=wire.sandbox_context(sandbox),
        atomic=True,
        mode=mode,
        if_unchanged_since=if_unchanged_since,
        must_not_exist=must_not_exist,
    )
    yield from ask(methods.FS_WRITE_FILE, params)


def rename(
    source: RemotePath, destination: RemotePath, replace: bool = True, sandbox: Sandbox = None
) -> Operation[None]:
    """Give a file or directory another name (an extension)."""
    params = FsRenameParams(
        source_path=wire.path_uri(source),
        destination_path=wire.path_uri(destination),
        replace=replace,
        sandbox=wire.sandbox_context(sandbox),
    )
    yield from ask(FS_RENAME, params)


def chmod(path: RemotePath, mode: int, sandbox: Sandbox = None) -> Operation[None]:
    """Set the permissions of what a path leads to (an extension)."""
    context = wire.sandbox_context(sandbox)
    yield from ask(FS_CHMOD, FsChmodParams(path=wire.path_uri(path), mode=mode, sandbox=context))


def touch(
    path: RemotePath,
    *,
    modified_at_ns: int | None = None,
    accessed_at_ns: int | None = None,
    create: bool = True,
    sandbox: Sandbox = None,
) -> Operation[None]:
    """Set the times of what a path leads to, none for now (an extension)."""
    params = FsTouchParams(
        path=wire.path_uri(path),
        modified_at_ns=modified_at_ns,
        accessed_at_ns=accessed_at_ns,
        create=create,
        sandbox=wire.sandbox_context(sandbox),
    )
    yield from ask(FS_TOUCH, params)


def create_directory(path: RemotePath, recursive: bool = True, sandbox: Sandbox = None) -> Operation[None]:
    """Make a directory, with its parents unless `recursive` is False."""
    params = fs.FsCreateDirectoryParams(
        path=wire.path_uri(path), recursive=recursive, sandbox=wire.sandbox_context(sandbox)
    )
    yield from ask(methods.FS_CREATE_DIRECTORY, params)


def get_metadata(path: RemotePath, sandbox: Sandbox = None) -> Operation[fs.FsGetMetadataResponse]:
    """Return kind, size and times of what is at a path."""
    params = fs.FsGetMetadataParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
    return ask(methods.FS_GET_METADATA, params)


def canonicalize(path: RemotePath, sandbox: Sandbox = None) -> Operation[PathUri]:
    """Return the path with every symlink resolved."""
    params = fs.FsCanonicalizeParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
    return (yield from ask(methods.FS_CANONICALIZE, params)).path


def read_directory(
    path: RemotePath, sandbox: Sandbox = None
) -> Operation[tuple[fs.FsReadDirectoryEntry, ...]]:
    """Return the names in a directory, unsorted."""
    params = fs.FsReadDirectoryParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
    return (yield from ask(methods.FS_READ_DIRECTORY, params)).entries


def remove(
    path: RemotePath, recursive: bool = True, force: bool = True, sandbox: Sandbox = None
) -> Operation[None]:
    """Remove a file, a link or a tree; with `force` a missing path is fine."""
    params = fs.FsRemoveParams(
        path=wire.path_uri(path), recursive=recursive, force=force, sandbox=wire.sandbox_context(sandbox)
    )
    yield from ask(methods.FS_REMOVE, params)


def copy(
    source: RemotePath, destination: RemotePath, recursive: bool = False, sandbox: Sandbox = None
) -> Operation[None]:
    """Copy a file or a link, or with `recursive` a directory."""
    params = fs.FsCopyParams(
        source_path=wire.path_uri(source),
        destination_path=wire.path_uri(destination),
        recursive=recursive,
        sandbox=wire.sandbox_context(sandbox),
    )
    yield from ask(methods.FS_COPY, params)


def walk(
    path: RemotePath, options: fs.FsWalkOptions | None = None, sandbox: Sandbox = None
) -> Operation[fs.FsWalkResponse]:
    """List a directory and everything below it, level by level, within the limits of `options`."""
    params = fs.FsWalkParams(
        path=wire.path_uri(path), options=options or _WALK, sandbox=wire.sandbox_context(sandbox)
    )
    return ask(methods.FS_WALK, params)
