"""`fs/hash`: what is asked about whole trees, page by page (wire contract, section 19)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.protocol import trees
from execserver.protocol.own_methods import FS_HASH
from execserver.services.hashing import hash_files


@handles(FS_HASH)
def hash_(call: Call, params: trees.FsHashParams) -> trees.FsHashResponse:
    """Hash a file, or the files below a directory."""
    paths = [params.path] if params.after is None else [params.path, params.after]
    files = operations(call, params.sandbox, *paths)
    return hash_files(call.services.filesystem, files, params)
