"""Puts files, directories and symlinks in their places: whole, with permissions and time, or not at all.

A path is absolute, and no symlink is followed on it; missing directories are made.  A new file or symlink
gets another name first and is then renamed, so what was there is replaced at once; a directory, a device, a
FIFO and a socket never are.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from execserver.files import part
from execserver.files.change import take_place
from execserver.files.no_symlinks import ResolvedName, create_directory_at
from execserver.protocol.errors import InvalidRequest

Stamp = tuple["int | None", "int | None"]  # permissions; time of modification in ns since 1970

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PERMISSIONS = 0o777
_NEW_MODE = 0o666


def fresh_name() -> bytes:
    """Return a name under which something may be made before it gets its own."""
    return b".execserver-" + os.urandom(8).hex().encode()


def put_file(path: bytes, content: bytes, stamp: Stamp) -> None:
    """Make or replace a file.  Raises OSError, EISDIR for a directory."""
    with ResolvedName(path, make=True) as place:
        fresh = fresh_name()
        # Until it has its content it is for its owner only, if its permissions are known.
        fd = os.open(fresh, _NEW, _NEW_MODE if stamp[0] is None else 0o600, dir_fd=place.fd)
        try:
            try:
                write_all(fd, content, 0)
                _stamp(fd, stamp)
            finally:
                os.close(fd)
            take_place((fresh, place.fd), (place.name, place.fd))
        except BaseException:
            _forget(fresh, place.fd)
            raise


class Piece(NamedTuple):
    """Some bytes of a file of `size` bytes, collected in `part` beside it; `writer` is who sends them."""

    part: bytes
    offset: int
    content: bytes
    size: int
    writer: str


def put_part(path: bytes, piece: Piece, stamp: Stamp) -> None:
    """Add a piece to its part beside a path, and give that its name when it has all bytes.

    A part at offset 0 begins anew.  The last part may come again.  Raises InvalidRequest for a hole, and for
    a part that somebody else writes by now.
    """
    mark = part.mark_of(piece.writer, piece.size, stamp[1])
    end = piece.offset + len(piece.content)
    with ResolvedName(path, make=True) as place:
        if piece.offset and _is_done(place, piece.size, stamp) and not _is_there(piece.part, place.fd):
            return
        fd = _opened_part(piece.part, place.fd, begins=not piece.offset)
        try:
            part.take(fd, piece.part, piece.offset, len(piece.content), mark)
            write_all(fd, piece.content, piece.offset)
            part.leave(fd, mark)
            if end < piece.size:
                return
            os.ftruncate(fd, piece.size)
            _stamp(fd, stamp)
            take_place((piece.part, place.fd), (place.name, place.fd))
        finally:
            os.close(fd)


def _opened_part(name: bytes, folder: int, *, begins: bool) -> int:
    """Open a part.  One of another user, who could read and change it, is replaced where the file begins."""
    fd = os.open(name, _PART, 0o600, dir_fd=folder)
    if part.is_own(os.fstat(fd), os.fstat(folder)):
        return fd
    os.close(fd)
    if not begins:
        raise InvalidRequest("the part belongs to another user")
    os.unlink(name, dir_fd=folder)
    return os.open(name, _PART | os.O_EXCL, 0o600, dir_fd=folder)


def put_directory(path: bytes, stamp: Stamp) -> None:
    """Make a directory unless it is there.  Raises OSError, ENOTDIR for anything else of the name."""
    with ResolvedName(path, make=True) as place:
        create_directory_at(place.fd, place.name, recursive=True)
        _stamp_name(place, stamp, os.O_DIRECTORY)


def put_symlink(path: bytes, text: bytes, modified_ns: int | None) -> None:
    """Make or replace a symlink.  Raises OSError, EISDIR for a directory."""
    with ResolvedName(path, make=True) as place:
        fresh = fresh_name()
        os.symlink(text, fresh, dir_fd=place.fd)
        try:
            if modified_ns is not None:
                os.utime(fresh, ns=(modified_ns, modified_ns), dir_fd=place.fd, follow_symlinks=False)
            take_place((fresh, place.fd), (place.name, place.fd))
        except BaseException:
            _forget(fresh, place.fd)
            raise


def stamp_file(path: bytes, stamp: Stamp) -> None:
    """Set permissions and time of a regular file."""
    with ResolvedName(path) as place:
        _stamp_name(place, stamp, 0)


def take_away(path: bytes) -> None:
    """Remove a file, a symlink itself or an empty directory; what is not there is fine."""
    try:
        with ResolvedName(path) as place:
            if stat.S_ISDIR(place.status().st_mode):
                os.rmdir(place.name, dir_fd=place.fd)
            else:
                os.unlink(place.name, dir_fd=place.fd)
    except FileNotFoundError:
        pass


def write_all(fd: int, content: bytes, offset: int) -> None:
    """Write all of a content at an offset."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]


def _stamp_name(place: ResolvedName, stamp: Stamp, flags: int) -> None:
    if stamp == (None, None):
        return
    status = place.status()
    wanted = stat.S_ISDIR if flags else stat.S_ISREG
    if not wanted(status.st_mode):
        number = errno.ENOTDIR if flags else errno.EINVAL
        raise OSError(number, os.strerror(number))
    fd = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=place.fd)
    try:
        # By /proc: what may not be opened for reading can still be changed by its owner.
        _stamp(b"/proc/self/fd/%d" % fd, stamp)
    finally:
        os.close(fd)


def _stamp(file: int | bytes, stamp: Stamp) -> None:
    mode, modified_ns = stamp
    if mode is not None:
        os.chmod(file, mode & _PERMISSIONS)
    if modified_ns is not None:
        os.utime(file, ns=(modified_ns, modified_ns))


def _is_done(place: ResolvedName, size: int, stamp: Stamp) -> bool:
    try:
        status = place.status()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (size, stamp[1])


def _is_there(name: bytes, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _forget(name: bytes, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # the first error says what is wrong
