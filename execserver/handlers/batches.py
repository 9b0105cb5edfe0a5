"""`fs/list`, `fs/readMany`, `fs/writeMany`, `fs/writePart`: many files, or a large one (section 19)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.protocol import batches
from execserver.protocol.own_methods import FS_LIST, FS_READ_MANY, FS_WRITE_MANY, FS_WRITE_PART
from execserver.services.trees.batches import Turn, list_tree, read_many, write_many, write_part

_WRITTEN = batches.FsWritePartResponse()


@handles(FS_LIST)
def list_(call: Call, params: batches.FsListParams) -> batches.FsListResponse:
    """List what is below a directory."""
    return list_tree(operations(call, params.sandbox, params.path), params)


@handles(FS_READ_MANY)
def read(call: Call, params: batches.FsReadManyParams) -> batches.FsReadManyResponse:
    """Read many files."""
    return read_many(call.services.filesystem, operations(call, params.sandbox, params.path), params)


@handles(FS_WRITE_MANY)
def write(call: Call, params: batches.FsWriteManyParams) -> batches.FsWriteManyResponse:
    """Write many files."""
    files = operations(call, params.sandbox, params.path)
    return write_many(call.services.filesystem, files, params, Turn(call.session_id, call.is_over))


@handles(FS_WRITE_PART)
def write_piece(call: Call, params: batches.FsWritePartParams) -> batches.FsWritePartResponse:
    """Write a piece of a file."""
    files = operations(call, params.sandbox, params.path)
    write_part(call.services.filesystem, files, params, Turn(call.session_id, call.is_over))
    return _WRITTEN
