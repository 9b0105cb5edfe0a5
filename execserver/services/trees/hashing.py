"""SHA-256 of files, for programs that compare trees.

Blocks are read as for `fs/readBlock` and hashed in threads.  A file that changes while it is read has no
hash, but an error that says so.
"""

from __future__ import annotations

import hashlib
import os
import stat

from execserver.core.file_handles import OpenFile
from execserver.protocol.errors import InvalidRequest, RpcError
from execserver.protocol.files import FsOpenMode
from execserver.protocol.trees import FsHashEntry, FsHashParams, FsHashResponse
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.trees.pages import TreePage

MAX_BYTES = 4 * 1024**3  # of one file in one request
_BLOCK_BYTES = 1024 * 1024
_AT_ONCE_BYTES = 32 * 1024  # hashed in 0.1 ms at most, less than what a thread costs


def hash_files(
    service: FileService, files: FileService | ConfinedFiles, params: FsHashParams
) -> FsHashResponse:
    """Return one page of hashes.  Raises OSError and RpcError for the path itself only."""
    path = params.path.native()
    is_directory = files.get_metadata(path)[0]
    if not is_directory:
        return FsHashResponse(entries=(_hash_one(service, files, path, params),), errors=(), next=None)
    if params.offset or params.length is not None:
        raise InvalidRequest("`offset` and `length` are for a file, not for a directory")
    page = TreePage(files, params.path, params.after, params.max_entries)
    found: list[FsHashEntry] = []
    for below, is_directory in page:
        if is_directory:
            continue
        whole = FsHashParams(path=page.uri(below))
        try:
            found.append(_hash_one(service, files, page.path(below), whole))
            page.count()
        except (OSError, RpcError) as error:
            page.refuse(below, error)
    return FsHashResponse(entries=tuple(found), errors=tuple(page.errors), next=page.next)


def _hash_one(
    service: FileService, files: FileService | ConfinedFiles, path: bytes, wanted: FsHashParams
) -> FsHashEntry:
    file = files.open(path, FsOpenMode.READ)
    try:
        status = os.fstat(file.fd)
        length = max(status.st_size - wanted.offset, 0)
        if wanted.length is not None:
            length = min(length, wanted.length)
        if length > MAX_BYTES:
            raise InvalidRequest(f"more than {MAX_BYTES} bytes: ask for parts with `offset` and `length`")
        digest = _digest(service, file, wanted.offset, length)
        if _identity(os.fstat(file.fd)) != _identity(status):
            raise InvalidRequest("file has changed while it was read")
    finally:
        service.release(file.fd)
    return FsHashEntry(
        path=wanted.path,
        size=status.st_size,
        modified_at_ns=status.st_mtime_ns,
        mode=stat.S_IMODE(status.st_mode),
        sha256=digest,
    )


def _digest(service: FileService, file: OpenFile, offset: int, length: int) -> str:
    digest = hashlib.sha256()
    end = offset + length
    while offset < end:
        block = service.read_block(file, offset, min(_BLOCK_BYTES, end - offset))
        if not block:
            break  # it has become shorter, which the caller notices
        if len(block) <= _AT_ONCE_BYTES:
            digest.update(block)
        else:
            _update(service, digest, block)
        offset += len(block)
    return digest.hexdigest()


def _update(service: FileService, digest: hashlib._Hash, block: bytes) -> None:
    # Only bytes go to the thread, no descriptor: it may outlive the request.
    service.in_thread(lambda pause: digest.update(block))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size
