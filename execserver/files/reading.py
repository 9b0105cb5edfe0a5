"""Reading regular files: whole in pieces, or one block at an offset.

A whole file is never held: `FileReader` gives it out piece by piece.  Only files that do not tell their size
(most of /proc) are read to the end before the first piece is given out, since a reply that has begun cannot
become an error any more.
"""

from __future__ import annotations

import errno
import os

from execserver.files.opening import open_regular
from execserver.files.pausing import no_pause
from execserver.protocol.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.files.pausing import Pause

MAX_FILE_BYTES = 536_870_912  # the contract's limit for fs/readFile
PIECE_BYTES = 192 * 1024  # a multiple of three, so that pieces can be encoded as base64 one by one
UNSIZED_FILE_BYTES = (
    64 * 1024 * 1024
)  # held for a file of unknown size; none in /proc that people read is larger
_MAX_OFFSET = 2**63 - 1


class FileTooLarge(InvalidRequest):
    """The file has more bytes than may be returned in one reply."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"file is too large to read: limit is {limit} bytes")


class FileReader:
    """Gives out one file from its start to the size it had when it was opened.

    Owns `fd` from the start; `close` is called by whoever takes the last piece, and again when the reader is
    collected, so that a reply nobody sent leaves no descriptor behind.
    """

    __slots__ = ("_ahead", "_left", "fd", "size")

    def __init__(self, fd: int, limit: int = MAX_FILE_BYTES, pause: Pause = no_pause) -> None:
        """Look at the file and read its start; raise FileTooLarge before anything is read."""
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
        """The content if it fits one piece and is therefore read already, else None."""
        return self._ahead[0] if self._left <= 0 and len(self._ahead) == 1 else None

    def next_piece(self) -> bytes:
        """Return the next piece, a multiple of three bytes long unless it is the last; empty at the end."""
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
        """Read the first piece; where no size is told (/proc), everything."""
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
        # A file that was cut meanwhile ends here.
        self._left = self._left - len(piece) if len(piece) == PIECE_BYTES else 0
        return piece


def read_fully(fd: int, length: int) -> bytes:
    """Read `length` bytes from where the descriptor stands, or fewer at the end of the file."""
    data = os.read(fd, length)
    # Files of the kernel give a page at a time.
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
