"""`fs/hash`, `fs/glob`, `fs/search`, `fs/archive`, `fs/extract`: trees (wire contract, section 19)."""

from __future__ import annotations

from execserver.handlers.context import Call
from execserver.handlers.filesystem import operations
from execserver.handlers.registry import handles
from execserver.protocol import trees
from execserver.protocol.own_methods import FS_ARCHIVE, FS_EXTRACT, FS_GLOB, FS_HASH, FS_SEARCH
from execserver.services.trees.globbing import glob_paths


@handles(FS_HASH)
def hash_(call: Call, params: trees.FsHashParams) -> trees.FsHashResponse:
    """Hash a file, or the files below a directory."""
    from execserver.services.trees.hashing import hash_files  # late: it loads OpenSSL

    paths = [params.path] if params.after is None else [params.path, params.after]
    files = operations(call, params.sandbox, *paths)
    return hash_files(call.services.filesystem, files, params)


@handles(FS_GLOB)
def glob(call: Call, params: trees.FsGlobParams) -> trees.FsGlobResponse:
    """Find paths by a pattern."""
    paths = [params.path] if params.after is None else [params.path, params.after]
    files = operations(call, params.sandbox, *paths)
    return glob_paths(call.services.filesystem, files, params)


@handles(FS_SEARCH)
def search(call: Call, params: trees.FsSearchParams) -> trees.FsSearchResponse:
    """Search the lines of files."""
    from execserver.services.trees.searching import Search  # late: few clients search

    paths = [params.path] if params.after is None else [params.path, params.after]
    files = operations(call, params.sandbox, *paths)
    return Search(call.session.processes.spawn, call.services.filesystem, files, params).run()


@handles(FS_ARCHIVE)
def archive(call: Call, params: trees.FsArchiveParams) -> trees.FsArchiveResponse:
    """Pack a file or a tree."""
    from execserver.services.trees.archiving import ArchivePage  # late: tarfile is large

    at = params.position
    paths = [params.path] if at is None else [params.path, at.path]
    files = operations(call, params.sandbox, *paths)
    return ArchivePage(call.services.filesystem, files, params).run()


@handles(FS_EXTRACT)
def extract(call: Call, params: trees.FsExtractParams) -> trees.FsExtractResponse:
    """Unpack a chunk of an archive."""
    from execserver.services.trees.extracting import Extraction  # late: few unpack anything

    at = params.position
    paths = [params.path] if at is None else [params.path, at.path]
    files = operations(call, params.sandbox, *paths)
    return Extraction(call.services.filesystem, files, params).run(params.path.native())
