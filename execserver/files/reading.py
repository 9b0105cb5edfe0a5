"""Reads regular files: whole in pieces, or one block at an offset.

A whole file is never held in memory: `FileReader` returns it piece by piece.  Only files that do not report
their size (most of /proc) are read to the end before the first piece is returned, since a reply that has
begun cannot become an error any more.
"""

from __future__ import annotations

import errno
import os

from execserver.files.opening import open_regular
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.files.yielding import Pause

MAX_FILE_BYTES = 536_870_912  # the contract's limit for fs/readFile
PIECE_BYTES = 192 * 1024  # a multiple of three, so that each piece can be encoded as base64 by itself
UNSIZED_FILE_BYTES = (
    64 * 1024 * 1024
)  # held for a file of unknown size; no file of /proc that people read is larger
_MAX_OFFSET = 2**63 - 1


class FileTooLarge(InvalidRequest):
    """The file has more bytes than one reply may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"file is too large to read: limit is {limit} bytes")


class FileReader:
    """Returns one file in pieces, from its start to the size it had when it was opened.

    Owns `fd` from the constructor on.  Whoever takes the last piece calls `close`; so does the end of the
    reader's life, so that a reply that is never sent leaves no descriptor behind.
    """

    __slots__ = ("_ahead", "_left", "fd", "size")

    def __init__(self, fd: int, limit: int = MAX_FILE_BYTES, pause: Pause = no_pause) -> None:
        """Check the size of the file and read its start; raise FileTooLarge before anything is read."""
        self.fd = fd
        self._ahead: list[bytes] = []
        try:
            self.size = os.fstat(fd).st_size
            if self.size > limit:
                raise FileTooLarge(limit)
            self._left = self.size
            self._read_start(limit, pause)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: bytes, limit: int = MAX_FILE_BYTES, pause: Pause = no_pause) -> FileReader:
        """Open a regular file; raise the errors of `open_regular` and FileTooLarge."""
        return cls(open_regular(path), limit, pause)

    @property
    def whole(self) -> bytes | None:
        """The content if it fits into one piece, which has been read already; else None."""
        return self._ahead[0] if self._left <= 0 and len(self._ahead) == 1 else None

    def next_piece(self) -> bytes:
        """Return the next piece, empty at the end; each but the last is a multiple of three bytes long."""
        if self._ahead:
            return self._ahead.pop(0)
        if self._left <= 0:
            return b""
        return self._read_piece(min(PIECE_BYTES, self._left))

    def pieces(self) -> Iterator[bytes]:
        """Yield all pieces, then close."""
        try:
            while piece := self.next_piece():
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor; calling it again is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _read_start(self, limit: int, pause: Pause) -> None:
        """Read the first piece; everything if the file reports no size (/proc)."""
        if self.size:
            self._read_ahead(min(PIECE_BYTES, self.size))
            return
        limit = min(limit, UNSIZED_FILE_BYTES)
        total = 0
        while got := self._read_ahead(PIECE_BYTES):
            total += got
            if total > limit:
                raise FileTooLarge(limit)
            pause()

    def _read_ahead(self, length: int) -> int:
        piece = self._read_piece(length)
        if piece or not self._ahead:
            self._ahead.append(piece)
        return len(piece)

    def _read_piece(self, length: int) -> bytes:
        piece = read_fully(self.fd, length)
        # A short piece: the file was cut meanwhile, and ends here.
        self._left = self._left - len(piece) if len(piece) == PIECE_BYTES else 0
        return piece


def read_fully(fd: int, length: int) -> bytes:
    """Read `length` bytes at the current offset, or fewer at the end of the file."""
    data = os.read(fd, length)
    # Files of the kernel return one page at a time.
    if not data or len(data) == length:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.read(fd, length - got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts) if len(parts) > 1 else parts[0]


def read_block(fd: int, offset: int, length: int) -> bytes:
    """Read `length` bytes at `offset`, or fewer at the end of the file."""
    if offset > _MAX_OFFSET - length:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    data = os.pread(fd, length, offset)
    if not data or len(data) == length:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(fd, length - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts) if len(parts) > 1 else parts[0]
