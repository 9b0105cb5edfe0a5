"""Files on the server: the fs/* methods under Python's names, and open files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from execserver.client import wire
from execserver.client.errors import (
    ExecServerError,
    FileTooLarge,
    ProtocolViolation,
    TransportClosed,
    UnsupportedByServer,
)
from execserver.client.session import Session
from execserver.client.trees import TreeMethods
from execserver.client.wire import RemotePath, Sandbox
from execserver.protocol import files as fs
from execserver.protocol import methods
from execserver.protocol.changes import (
    FsChmodParams,
    FsGetVersionParams,
    FsGetVersionResponse,
    FsRenameParams,
    FsTouchParams,
)
from execserver.protocol.file_watches import FsWatchParams
from execserver.protocol.files import FileVersion, FsWriteFileParams
from execserver.protocol.methods import FS_WRITE_FILE
from execserver.protocol.own_methods import FS_CHMOD, FS_GET_VERSION, FS_RENAME, FS_TOUCH
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.file_watches import FileWatch, Watches

BLOCK_BYTES: Final = 1024 * 1024
"""The most one block read may ask for."""

# Larger files are read block by block: their JSON would exceed some servers' limit of a message or a frame.
_WHOLE_READ_BYTES: Final = 8 * 1024 * 1024
_GROWTH_BYTES: Final = 8 * 1024 * 1024  # what a file may grow by while it is read; else reading might not end
_WHOLE_WRITE_BYTES: Final = 40 * 1024 * 1024


class RemoteFile:
    """An open file; a context manager that closes it, and an iterator over its blocks.

    It belongs to one connection: after a loss its methods raise `NotFoundError`, and it must be opened again.
    """

    def __init__(self, session: Session, handle_id: str, mode: fs.FsOpenMode) -> None:
        self.handle_id = handle_id
        self.mode = mode
        self._session = session
        self._closed = False

    def read_block(self, offset: int, size: int = BLOCK_BYTES) -> bytes:
        """Return up to `size` (at most 1 MiB) bytes at `offset`; fewer only at the end of the file."""
        params = fs.FsReadBlockParams(handle_id=self.handle_id, offset=offset, len=size)
        block = self._session.call(methods.FS_READ_BLOCK, params).chunk
        if len(block) > size:
            raise ProtocolViolation(f"asked for {size} bytes of a file, got {len(block)}")
        return block

    def write_block(self, offset: int, data: bytes) -> None:
        """Write bytes at `offset`; a hole before them reads as zeros."""
        params = fs.FsWriteBlockParams(handle_id=self.handle_id, offset=offset, chunk=data)
        self._session.call(methods.FS_WRITE_BLOCK, params)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content from the beginning in blocks of 1 MiB."""
        offset = 0
        while block := self.read_block(offset):
            yield block
            offset += len(block)

    def close(self) -> None:
        """Close the file on the server.  May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            self._session.call(methods.FS_CLOSE, fs.FsCloseParams(handle_id=self.handle_id))
        except TransportClosed:
            pass  # the handle ended with the connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ExecServerError:
            if error is None:
                raise


class RemoteFiles(TreeMethods):
    """The file methods; every path is absolute or a `file:` URI, every `sandbox` the contract's object.

    A refusal of the server is a `RequestFailed`: `NotFoundError` for a missing file, else the code's class.
    """

    def __init__(self, session: Session, watches: Watches) -> None:
        """`watches` are those of the session, by their ids."""
        self._session = session
        self._watches = watches
        self._handle_prefix = os.urandom(4).hex()
        self._handles = count(1)

    def read_file(self, path: RemotePath, *, sandbox: Sandbox = None, max_bytes: int | None = None) -> bytes:
        """Return the content of a regular file; above 8 MiB it is read block by block.

        Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
        larger than the server reported before: one that grows fast, or a server that never ends.
        """
        if sandbox is None and (size := self.get_metadata(path).size) > _WHOLE_READ_BYTES:
            most = size + _GROWTH_BYTES
            return self._read_blocks(path, most if max_bytes is None else min(most, max_bytes))
        params = fs.FsReadFileParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
        data = self._session.call(methods.FS_READ_FILE, params).data_base64
        if max_bytes is not None and len(data) > max_bytes:
            raise FileTooLarge(f"the file is longer than {max_bytes} bytes")
        return data

    def write_file(self, path: RemotePath, data: bytes, *, sandbox: Sandbox = None) -> None:
        """Create or replace a file; above 40 MiB block by block, which not every server offers."""
        if len(data) > _WHOLE_WRITE_BYTES:
            self._write_blocks(path, data, sandbox)
            return
        params = fs.FsWriteFileParams(
            path=wire.path_uri(path),
            data_base64=wire.base64_text(data),
            sandbox=wire.sandbox_context(sandbox),
        )
        self._session.call(methods.FS_WRITE_FILE, params)

    def stat(self, path: RemotePath, sandbox: Sandbox = None) -> FsGetVersionResponse:
        """Return the version and the permissions of a file (an extension, as the four that follow)."""
        params = FsGetVersionParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
        return self._session.call(FS_GET_VERSION, params)

    def replace_file(
        self,
        path: RemotePath,
        content: bytes,
        *,
        mode: int | None = None,
        if_unchanged_since: FileVersion | None = None,
        must_not_exist: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Replace a file as a whole or not at all; only if it is still a version that `stat` has returned."""
        params = FsWriteFileParams(
            path=wire.path_uri(path),
            data_base64=wire.base64_text(content),
            sandbox=wire.sandbox_context(sandbox),
            atomic=True,
            mode=mode,
            if_unchanged_since=if_unchanged_since,
            must_not_exist=must_not_exist,
        )
        self._session.call(FS_WRITE_FILE, params)

    def rename(
        self, source: RemotePath, destination: RemotePath, *, replace: bool = True, sandbox: Sandbox = None
    ) -> None:
        """Give a file or directory another name."""
        params = FsRenameParams(
            source_path=wire.path_uri(source),
            destination_path=wire.path_uri(destination),
            replace=replace,
            sandbox=wire.sandbox_context(sandbox),
        )
        self._session.call(FS_RENAME, params)

    def chmod(self, path: RemotePath, mode: int, sandbox: Sandbox = None) -> None:
        """Set the permissions of what a path leads to."""
        context = wire.sandbox_context(sandbox)
        self._session.call(FS_CHMOD, FsChmodParams(path=wire.path_uri(path), mode=mode, sandbox=context))

    def touch(
        self,
        path: RemotePath,
        *,
        modified_at_ns: int | None = None,
        accessed_at_ns: int | None = None,
        create: bool = True,
        sandbox: Sandbox = None,
    ) -> None:
        """Set the times of what a path leads to, none for now; make an empty file where there is none."""
        params = FsTouchParams(
            path=wire.path_uri(path),
            modified_at_ns=modified_at_ns,
            accessed_at_ns=accessed_at_ns,
            create=create,
            sandbox=wire.sandbox_context(sandbox),
        )
        self._session.call(FS_TOUCH, params)

    def open_file(self, path: RemotePath, mode: str = "read", *, sandbox: Sandbox = None) -> RemoteFile:
        """Open a regular file: mode `read`, or `replace` to create or empty it for writing.

        Raises `UnsupportedByServer` for `replace` on a server that cannot write blocks.
        """
        wanted = fs.FsOpenMode(mode)
        if wanted is fs.FsOpenMode.REPLACE and not self._can_write_blocks():
            raise UnsupportedByServer("this server does not write files block by block")
        params = fs.FsOpenParams(
            handle_id=f"{self._handle_prefix}-{next(self._handles)}",
            path=wire.path_uri(path),
            mode=wanted,
            sandbox=wire.sandbox_context(sandbox),
        )
        return RemoteFile(self._session, self._session.call(methods.FS_OPEN, params).handle_id, wanted)

    def watch(
        self,
        path: RemotePath,
        *,
        recursive: bool = True,
        coalesce: float = 0.1,
        sandbox: Sandbox = None,
    ) -> FileWatch:
        """Watch a directory and all below it; iterating the result yields batches of what has changed.

        Changes are collected for `coalesce` seconds, at most 10.  When this returns everything is watched.
        Raises `RequestFailed`, with the cure where a limit is reached, or `UnsupportedByServer`.
        """
        from execserver.client.file_watches import FileWatch  # late: few programs watch anything

        params = FsWatchParams(
            watch_id=uuid4().hex,
            path=wire.path_uri(path),
            recursive=recursive,
            coalesce_ms=round(coalesce * 1000),
            sandbox=wire.sandbox_context(sandbox),
        )
        return FileWatch.open(self._session, self._watches, params)

    def create_directory(self, path: RemotePath, *, recursive: bool = True, sandbox: Sandbox = None) -> None:
        """Make a directory, with its parents unless `recursive` is False."""
        params = fs.FsCreateDirectoryParams(
            path=wire.path_uri(path), recursive=recursive, sandbox=wire.sandbox_context(sandbox)
        )
        self._session.call(methods.FS_CREATE_DIRECTORY, params)

    def get_metadata(self, path: RemotePath, *, sandbox: Sandbox = None) -> fs.FsGetMetadataResponse:
        """Return kind, size and times of the file at a path."""
        params = fs.FsGetMetadataParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
        return self._session.call(methods.FS_GET_METADATA, params)

    def canonicalize(self, path: RemotePath, *, sandbox: Sandbox = None) -> PathUri:
        """Return the path with every symlink resolved."""
        params = fs.FsCanonicalizeParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
        return self._session.call(methods.FS_CANONICALIZE, params).path

    def read_directory(
        self, path: RemotePath, *, sandbox: Sandbox = None
    ) -> tuple[fs.FsReadDirectoryEntry, ...]:
        """Return the names in a directory, unsorted."""
        params = fs.FsReadDirectoryParams(path=wire.path_uri(path), sandbox=wire.sandbox_context(sandbox))
        return self._session.call(methods.FS_READ_DIRECTORY, params).entries

    def remove(
        self, path: RemotePath, *, recursive: bool = True, force: bool = True, sandbox: Sandbox = None
    ) -> None:
        """Remove a file, a link or a tree; with `force` a missing path is fine."""
        params = fs.FsRemoveParams(
            path=wire.path_uri(path), recursive=recursive, force=force, sandbox=wire.sandbox_context(sandbox)
        )
        self._session.call(methods.FS_REMOVE, params)

    def copy(
        self,
        source: RemotePath,
        destination: RemotePath,
        *,
        recursive: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Copy a file or a link, or with `recursive` a directory."""
        params = fs.FsCopyParams(
            source_path=wire.path_uri(source),
            destination_path=wire.path_uri(destination),
            recursive=recursive,
            sandbox=wire.sandbox_context(sandbox),
        )
        self._session.call(methods.FS_COPY, params)

    def walk(
        self, path: RemotePath, options: fs.FsWalkOptions | None = None, *, sandbox: Sandbox = None
    ) -> fs.FsWalkResponse:
        """List a directory and everything below it, level by level, within the limits of `options`."""
        params = fs.FsWalkParams(
            path=wire.path_uri(path), options=options or _WALK, sandbox=wire.sandbox_context(sandbox)
        )
        return self._session.call(methods.FS_WALK, params)

    def _read_blocks(self, path: RemotePath, most: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        with self.open_file(path) as file:
            for block in file:
                pieces.append(block)
                size += len(block)
                if size > most:
                    raise FileTooLarge(f"the file is longer than {most} bytes; it can be read in blocks")
        return b"".join(pieces)

    def _write_blocks(self, path: RemotePath, data: bytes, sandbox: Sandbox) -> None:
        with self.open_file(path, "replace", sandbox=sandbox) as file:
            for offset in range(0, len(data), BLOCK_BYTES):
                file.write_block(offset, data[offset : offset + BLOCK_BYTES])

    def _can_write_blocks(self) -> bool:
        info = self._session.environment_info
        return info is not None and info.capabilities.file_write_streaming


_WALK: Final = fs.FsWalkOptions(
    max_depth=64, max_directories=10_000, max_entries=50_000, follow_directory_symlinks=False
)
