"""`fs/*` (wire contract, section 12)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from msgspec import Raw

from execserver.files.walk import WalkOptions
from execserver.handlers.context import Call
from execserver.handlers.limits import UNRESTRICTED, limits
from execserver.handlers.registry import handles
from execserver.handlers.replies import InBinary, InParts, InTurn, Reply, Streamed
from execserver.protocol import base64, files, methods
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.lifting import LEAST_BYTES
from execserver.protocol.paths import PathUri
from execserver.protocol.pieces import batches, comma_separated, walk_text
from execserver.protocol.record import encode_record
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles

_ENTRIES_AT_ONCE = 16_384  # of a listing that is encoded at once, in 2 ms; a longer one leaves in pieces

_CLOSED = files.FsCloseResponse()
_CREATED = files.FsCreateDirectoryResponse()
_COPIED = files.FsCopyResponse()
_REMOVED = files.FsRemoveResponse()
_WRITTEN = files.FsWriteFileResponse()
_BLOCK_WRITTEN = files.FsWriteBlockResponse()


def operations(
    call: Call, sandbox: FileSystemSandboxContext | None, *paths: PathUri
) -> FileService | ConfinedFiles:
    """Return what performs a request: the server itself, or a worker if context or grant restrict files.

    Checks the paths and the context; raises InvalidRequest for a path of another kind of host.
    """
    laid = limits(call)
    if laid is not None:
        context = sandbox or UNRESTRICTED
        call.services.sandboxed_files.needed(context, *paths)
        return call.services.sandboxed_files.within(context, laid)
    if sandbox is not None and call.services.sandboxed_files.needed(sandbox, *paths):
        return call.services.sandboxed_files.within(sandbox)
    return call.services.filesystem


@handles(methods.FS_READ_FILE)
def read_file(call: Call, params: files.FsReadFileParams) -> InParts | Streamed:
    """Return a whole file, in pieces unless it fits into one."""
    limit = call.services.filesystem.read_limit(
        call.connection.client_name, bounded=call.connection.bounded_messages
    )
    files_ = operations(call, params.sandbox, params.path)
    first, rest = files_.read_file(params.path.native(), limit, params.follow_symlinks is not False)
    # Base64 text needs no JSON escapes, so no encoder has to read it.
    if rest is None:
        return InParts(b'{"dataBase64":"', first, b'"}')
    return Streamed(chain((b'{"dataBase64":"' + first,), rest, (b'"}',)))


@handles(methods.FS_OPEN)
def open_file(call: Call, params: files.FsOpenParams) -> files.FsOpenResponse:
    """Open a file under the client's id; whether the id is free is checked after the file was found."""
    handles_ = call.connection.handles
    handles_.check_id(params.handle_id)
    file = operations(call, params.sandbox, params.path).open(params.path.native(), params.mode)
    handles_.add(params.handle_id, file)
    return files.FsOpenResponse(handle_id=params.handle_id)


@handles(methods.FS_READ_BLOCK)
def read_block(call: Call, params: files.FsReadBlockParams) -> InParts | InBinary:
    """Read from an open file; any error of reading closes the handle."""
    length = params.len
    file = call.connection.handles.for_reading(params.handle_id, length)
    try:
        data = call.services.filesystem.read_block(file, params.offset, length)
    except OSError:
        call.connection.handles.close(params.handle_id)
        raise
    eof = b'","eof":true}' if len(data) < length else b'","eof":false}'
    if params.binary and len(data) >= LEAST_BYTES and call.connection.sink.carries_binary:
        return InBinary(b'{"chunk":"' + eof, data)
    return InParts(b'{"chunk":"', base64.encode(data), eof)


@handles(methods.FS_WRITE_BLOCK)
def write_block(call: Call, params: files.FsWriteBlockParams) -> files.FsWriteBlockResponse:
    """Write to an open file; an error leaves the handle open."""
    file = call.connection.handles.for_writing(params.handle_id, params.offset, len(params.chunk))
    call.services.filesystem.write_block(file, params.offset, params.chunk)
    return _BLOCK_WRITTEN


@handles(methods.FS_CLOSE)
def close_file(call: Call, params: files.FsCloseParams) -> files.FsCloseResponse:
    """Close a handle, whether it is open or not."""
    call.connection.handles.check_id(params.handle_id)
    call.connection.handles.close(params.handle_id)
    return _CLOSED


@handles(methods.FS_WRITE_FILE)
def write_file(call: Call, params: files.FsWriteFileParams) -> files.FsWriteFileResponse:
    """Create or replace a file; the content is checked before the path."""
    try:
        content = base64.decode(params.data_base64)
    except base64.InvalidBase64 as reason:
        raise InvalidRequest(f"fs/writeFile requires valid base64 dataBase64: {reason}") from None
    files_ = operations(call, params.sandbox, params.path)
    if params.atomic:
        from execserver.services.files.replacing import replace_file

        replace_file(call.services.filesystem, files_, params, content)
        return _WRITTEN
    files_.write_file(params.path.native(), content, params.follow_symlinks is not False)
    return _WRITTEN


@handles(methods.FS_CREATE_DIRECTORY)
def create_directory(call: Call, params: files.FsCreateDirectoryParams) -> files.FsCreateDirectoryResponse:
    """Make a directory, with its parents unless `recursive` is false."""
    files_ = operations(call, params.sandbox, params.path)
    recursive, links = params.recursive is not False, params.follow_symlinks is not False
    files_.create_directory(params.path.native(), recursive, links)
    return _CREATED


@handles(methods.FS_GET_METADATA, waits=False)
def get_metadata(call: Call, params: files.FsGetMetadataParams) -> files.FsGetMetadataResponse | InTurn:
    """Report kind, size and time of modification; the time of birth in no-symlinks mode only."""
    files_, path = operations(call, params.sandbox, params.path), params.path.native()
    if params.follow_symlinks is False:
        return InTurn(partial(_metadata_without_symlinks, files_, path))
    found = files_.metadata_at_once(path) if isinstance(files_, FileService) else None
    return InTurn(partial(_metadata_in_turn, files_, path)) if found is None else _metadata(found)


def _metadata_in_turn(files_: FileService | ConfinedFiles, path: bytes) -> files.FsGetMetadataResponse:
    return _metadata(files_.get_metadata(path))


def _metadata_without_symlinks(
    files_: FileService | ConfinedFiles, path: bytes
) -> files.FsGetMetadataResponse:
    return _metadata(*files_.get_metadata_without_symlinks(path))


def _metadata(found: tuple[bool, bool, bool, int, int], born_ms: int = 0) -> files.FsGetMetadataResponse:
    is_directory, is_file, is_symlink, size, modified_at_ms = found
    return files.FsGetMetadataResponse(
        is_directory=is_directory,
        is_file=is_file,
        is_symlink=is_symlink,
        size=size,
        created_at_ms=born_ms,
        modified_at_ms=modified_at_ms,
    )


@handles(methods.FS_CANONICALIZE)
def canonicalize(call: Call, params: files.FsCanonicalizeParams) -> files.FsCanonicalizeResponse:
    """Resolve every symlink of a path."""
    path = operations(call, params.sandbox, params.path).canonicalize(params.path.native())
    return files.FsCanonicalizeResponse(path=PathUri.from_native(path))


@handles(methods.FS_READ_DIRECTORY)
def read_directory(
    call: Call, params: files.FsReadDirectoryParams
) -> Streamed | files.FsReadDirectoryResponse:
    """List a directory."""
    found = operations(call, params.sandbox, params.path).read_directory(params.path.native())
    if len(found) <= _ENTRIES_AT_ONCE:
        return _directory(found)
    listed = (encode_record(_directory(batch))[len(b'{"entries":[') : -2] for batch in batches(found))
    return Streamed(chain((b'{"entries":[',), comma_separated(listed), (b"]}",)))


@handles(methods.FS_REMOVE)
def remove(call: Call, params: files.FsRemoveParams) -> files.FsRemoveResponse:
    """Remove a file, a symlink or a tree."""
    recursive, force = params.recursive is not False, params.force is not False
    files_ = operations(call, params.sandbox, params.path)
    files_.remove(params.path.native(), recursive, force, params.follow_symlinks is not False)
    return _REMOVED


@handles(methods.FS_COPY)
def copy(call: Call, params: files.FsCopyParams) -> files.FsCopyResponse:
    """Copy a file, a symlink or a tree."""
    source, destination = params.source_path, params.destination_path
    files_ = operations(call, params.sandbox, source, destination)
    files_.copy(source.native(), destination.native(), params.recursive)
    return _COPIED


@handles(methods.FS_WALK)
def walk(call: Call, params: files.FsWalkParams) -> Raw | Streamed:
    """List a directory and what is below it; the limits are checked before the path."""
    wanted = params.options
    options = WalkOptions(
        wanted.max_depth,
        wanted.max_directories,
        wanted.max_entries,
        wanted.follow_directory_symlinks,
        wanted.prune_hidden_directories,
    )
    found = operations(call, params.sandbox, params.path).walk(params.path.native(), options)
    if len(found.entries) <= _ENTRIES_AT_ONCE:
        return Raw(b"".join(walk_text(found.entries, found.errors, found.truncated)))
    return Streamed(walk_text(found.entries, found.errors, found.truncated))


@handles(methods.FS_WATCH_MISSING)
def watch_missing(call: Call, params: files.FsWatchMissingParams) -> Reply | files.FsWatchMissingResponse:
    """Watch missing paths; the notification about them never comes before this answer."""
    connection = call.connection
    if connection.watch is None:
        connection.watch = call.services.watch_for(connection.sink)
    watch = connection.watch.replace(params)
    if watch is None:
        return files.FsWatchMissingResponse(watching=False)
    return Reply(files.FsWatchMissingResponse(watching=True), watch.arm)


def _directory(found: Sequence[tuple[str, bool, bool]]) -> files.FsReadDirectoryResponse:
    entry = files.FsReadDirectoryEntry
    return files.FsReadDirectoryResponse(
        entries=tuple([entry(file_name=name, is_directory=d, is_file=f) for name, d, f in found])
    )
