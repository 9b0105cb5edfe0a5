"""The files that one client holds open: ids, limits, modes, and the order of their checks.

No I/O: descriptors come in as numbers and leave through the `close` callable (wire contract, sections 12 and
14).  Texts about reading are those of the June 2026 contract, texts about writing those of the newest
reference server, which introduced it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

from execserver.protocol.errors import InvalidRequest, NotFound
from execserver.protocol.files import FsOpenMode

MAX_HANDLES = 128  # per connection
MAX_ID_BYTES = 32
MAX_BLOCK_BYTES = 1024 * 1024
_MAX_OFFSET = 2**63 - 1


class OpenFile:
    """One open file: its descriptor, its mode, and whether it is on a local file system."""

    __slots__ = ("fd", "local", "mode")

    def __init__(self, fd: int, mode: FsOpenMode, local: bool) -> None:
        self.fd = fd
        self.mode = mode
        self.local = local


class FileHandles:
    """The open files of one connection.  Owns their descriptors from `add` until they are closed."""

    def __init__(self, close: Callable[[int], None], max_handles: int = MAX_HANDLES) -> None:
        self._close = close
        self._max_handles = max_handles
        self._files: dict[str, OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    @staticmethod
    def check_id(handle_id: str, what: str = "file read handle") -> None:
        """Raise InvalidRequest for an id that is too long; every call checks this first."""
        if len(handle_id.encode()) > MAX_ID_BYTES:
            raise InvalidRequest(f"{what} ID must not exceed {MAX_ID_BYTES} bytes")

    def add(self, handle_id: str, file: OpenFile) -> None:
        """Take over an open file; if its id is in use or none is free, close it and raise InvalidRequest."""
        if handle_id in self._files:
            self._close(file.fd)
            raise InvalidRequest(f"file read handle `{handle_id}` already exists")
        if len(self._files) >= self._max_handles:
            self._close(file.fd)
            raise InvalidRequest(f"at most {self._max_handles} file reads may be open per connection")
        self._files[handle_id] = file

    def for_reading(self, handle_id: str, length: int) -> OpenFile:
        """Return the file to read a block from.

        A handle for writing is closed and raises OSError EBADF: every read error ends a handle.
        """
        self.check_id(handle_id)
        if not 1 <= length <= MAX_BLOCK_BYTES:
            raise InvalidRequest(f"file read block length must be between 1 and {MAX_BLOCK_BYTES}")
        file = self._files.get(handle_id)
        if file is None:
            raise NotFound(f"unknown file read handle `{handle_id}`")
        if file.mode is not FsOpenMode.READ:
            self.close(handle_id)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def for_writing(self, handle_id: str, offset: int, length: int) -> OpenFile:
        """Return the file to write a block to; a handle for reading raises OSError EBADF and stays open."""
        self.check_id(handle_id, "file handle")
        if not 1 <= length <= MAX_BLOCK_BYTES:
            raise InvalidRequest(f"file write block length must be between 1 and {MAX_BLOCK_BYTES}")
        if offset > _MAX_OFFSET - length:
            raise InvalidRequest("file write range exceeds the signed 64-bit file offset limit")
        file = self._files.get(handle_id)
        if file is None:
            raise NotFound(f"unknown file handle `{handle_id}`")
        # The handle stays open: unlike a read error, a write error ends no handle.
        if file.mode is not FsOpenMode.REPLACE:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def pack(self) -> list[tuple[str, int, str, bool]]:
        """Return id, descriptor, mode and place of each, for `restore`."""
        return [(handle_id, file.fd, file.mode.value, file.local) for handle_id, file in self._files.items()]

    def restore(self, packed: Iterable[tuple[str, int, str, bool]]) -> None:
        """Take over files that another server has opened."""
        for handle_id, fd, mode, local in packed:
            self._files[handle_id] = OpenFile(fd, FsOpenMode(mode), local)

    def close(self, handle_id: str) -> None:
        """Close one handle; an unknown id is no error."""
        file = self._files.pop(handle_id, None)
        if file is not None:
            self._close(file.fd)

    def close_all(self) -> None:
        """Close everything: the connection ends."""
        while self._files:
            self._close(self._files.popitem()[1].fd)
