"""The content of files: as a whole, and block by block through an open file.

An open file belongs to one connection: after a loss its calls fail with `NotFoundError`.
"""

from __future__ import annotations

import os
from itertools import count
from typing import Final

from execserver.client.errors import (
    ExecServerError,
    FileTooLarge,
    InvalidPath,
    ProtocolViolation,
    RequestFailed,
    TransportClosed,
    UnsupportedByServer,
)
from execserver.client.operations.call import Operation, ask
from execserver.client.operations.files import get_metadata
from execserver.client.rules import wire
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.protocol import files as fs
from execserver.protocol import methods
from execserver.protocol.environment import EnvironmentInfo

BLOCK_BYTES: Final = 1024 * 1024
"""The most one block read may ask for."""

# Larger files are read block by block: their JSON would exceed some servers' limit of a message or a frame.
WHOLE_READ_BYTES: Final = 8 * 1024 * 1024
_GROWTH_BYTES: Final = 8 * 1024 * 1024  # what a file may grow by while it is read; else reading might not end
_WHOLE_WRITE_BYTES: Final = 40 * 1024 * 1024
_LONGEST_HANDLE: Final = 1024
_CLOSE_S: Final = 5.0  # for a file that nobody needs any more, because something else has failed


class Handles:
    """Gives each file that a client opens an id of its own."""

    def __init__(self) -> None:
        self._prefix = os.urandom(4).hex()
        self._numbers = count(1)

    def new(self) -> str:
        """Return an id that no other file has."""
        return f"{self._prefix}-{next(self._numbers)}"


def open_file(
    handle_id: str, path: RemotePath, mode: str, info: EnvironmentInfo | None, sandbox: Sandbox = None
) -> Operation[str]:
    """Open a regular file in mode `read` or `replace` and return the id of the open file.

    Raises `UnsupportedByServer` for `replace` on a server whose `info` does not announce it.
    """
    wanted = fs.FsOpenMode(mode)
    if wanted is fs.FsOpenMode.REPLACE and not (info and info.capabilities.file_write_streaming):
        raise UnsupportedByServer("this server does not write files block by block")
    params = fs.FsOpenParams(
        handle_id=handle_id,
        path=wire.path_uri(path),
        mode=wanted,
        sandbox=wire.sandbox_context(sandbox),
    )
    found = (yield from ask(methods.FS_OPEN, params)).handle_id
    if len(found) > _LONGEST_HANDLE:  # each block is asked for by it
        raise ProtocolViolation(f"the server's name for an open file has {len(found)} characters")
    return found


def opened_or_abandoned(
    handle_id: str, path: RemotePath, mode: str, info: EnvironmentInfo | None, sandbox: Sandbox = None
) -> Operation[str]:
    """Open a file as `open_file` does; who stops waiting leaves nothing open there."""
    try:
        return (yield from open_file(handle_id, path, mode, info, sandbox))
    except (GeneratorExit, RequestFailed, TransportClosed, InvalidPath, UnsupportedByServer):
        raise  # nothing is open, or nobody is there to close it
    except BaseException:
        yield from abandon(handle_id)
        raise


def read_block(
    handle_id: str, offset: int, size: int = BLOCK_BYTES, *, binary: bool = False
) -> Operation[bytes]:
    """Return up to `size` (at most 1 MiB) bytes at `offset`; fewer only at the end of the file.

    `binary`: the server may send them without base64.
    """
    params = fs.FsReadBlockParams(handle_id=handle_id, offset=offset, len=size, binary=binary)
    block = (yield from ask(methods.FS_READ_BLOCK, params)).chunk
    if len(block) > size:
        raise ProtocolViolation(f"asked for {size} bytes of a file, got {len(block)}")
    return block


def write_block(handle_id: str, offset: int, data: bytes) -> Operation[None]:
    """Write bytes at `offset`; a hole before them reads as zeros."""
    params = fs.FsWriteBlockParams(handle_id=handle_id, offset=offset, chunk=data)
    yield from ask(methods.FS_WRITE_BLOCK, params)


def close(handle_id: str, timeout: float | None = None) -> Operation[None]:
    """Close an open file; one that ended with its connection is closed already."""
    try:
        yield from ask(methods.FS_CLOSE, fs.FsCloseParams(handle_id=handle_id), timeout=timeout)
    except TransportClosed:
        pass


def abandon(handle_id: str) -> Operation[None]:
    """Close an open file because of a failure, which counts more than one of this."""
    try:
        yield from close(handle_id, _CLOSE_S)
    except ExecServerError:
        pass


def read_file(
    handles: Handles, path: RemotePath, *, sandbox: Sandbox = None, max_bytes: int | None = None
) -> Operation[bytes]:
    """Return the content of a regular file; above 8 MiB it is read block by block.

    Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
    larger than the server reported before: one that grows fast, or a server that never ends.
    """
    if sandbox is None:
        size = (yield from get_metadata(path)).size
        if size > WHOLE_READ_BYTES:
            most = size + _GROWTH_BYTES
            most = most if max_bytes is None else min(most, max_bytes)
            return (yield from _read_blocks(handles.new(), path, most))
    data = yield from read_whole(path, sandbox)
    if max_bytes is not None and len(data) > max_bytes:
        raise FileTooLarge(f"the file is longer than {max_bytes} bytes")
    return data


def read_whole(path: RemotePath, sandbox: Sandbox = None) -> Operation[bytes]:
    """Return the content of a regular file that is not large, in one answer."""
    params = fs.FsReadFileParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
    return (yield from ask(methods.FS_READ_FILE, params)).data_base64


def write_file(
    handles: Handles,
    path: RemotePath,
    data: bytes,
    info: EnvironmentInfo | None,
    sandbox: Sandbox = None,
) -> Operation[None]:
    """Create or replace a file; above 40 MiB block by block, which not every server offers."""
    if len(data) > _WHOLE_WRITE_BYTES:
        handle_id = yield from open_file(handles.new(), path, "replace", info, sandbox)
        yield from _write_blocks(handle_id, data)
        return
    params = fs.FsWriteFileParams(
        path=wire.path_uri(path), data_base64=wire.base64_text(data), sandbox=wire.sandbox_context(sandbox)
    )
    yield from ask(methods.FS_WRITE_FILE, params)


def _read_blocks(wanted_id: str, path: RemotePath, most: int) -> Operation[bytes]:
    handle_id = yield from open_file(wanted_id, path, "read", None)
    pieces: list[bytes] = []
    size = 0
    try:
        while block := (yield from read_block(handle_id, size)):
            pieces.append(block)
            size += len(block)
            if size > most:
                raise FileTooLarge(f"the file is longer than {most} bytes; it can be read in blocks")
    except GeneratorExit:
        raise  # nobody is there to carry out another call
    except BaseException:
        yield from abandon(handle_id)
        raise
    yield from close(handle_id)
    return b"".join(pieces)


def _write_blocks(handle_id: str, data: bytes) -> Operation[None]:
    try:
        for offset in range(0, len(data), BLOCK_BYTES):
            yield from write_block(handle_id, offset, data[offset : offset + BLOCK_BYTES])
    except GeneratorExit:
        raise  # nobody is there to carry out another call
    except BaseException:
        yield from abandon(handle_id)
        raise
    yield from close(handle_id)
