"""Whole small files for services that read them for a client: through its sandbox, and within a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.core.file_handles import OpenFile
from execserver.files.reading import FileTooLarge
from execserver.protocol.errors import from_os_error
from execserver.protocol.files import FsOpenMode
from execserver.services.files.filesystem import FileService

if TYPE_CHECKING:
    from execserver.services.files.sandboxed import ConfinedFiles

_BLOCK_BYTES = 64 * 1024


def read_small(files: FileService, operations: FileService | ConfinedFiles, path: bytes, limit: int) -> bytes:
    """Return the content of a regular file that `operations` opens.

    Raises RpcError with the contract's text for what the system refuses, FileTooLarge above `limit` bytes.
    """
    try:
        file = operations.open(path, FsOpenMode.READ)
        try:
            return _content(files, file, limit)
        finally:
            files.release(file.fd)
    except OSError as error:
        raise from_os_error(error) from None


def _content(files: FileService, file: OpenFile, limit: int) -> bytes:
    content = bytearray()
    while len(content) <= limit:
        block = files.read_block(file, len(content), _BLOCK_BYTES)
        content += block
        if len(block) < _BLOCK_BYTES:
            break
    if len(content) > limit:
        raise FileTooLarge(limit)
    return bytes(content)
