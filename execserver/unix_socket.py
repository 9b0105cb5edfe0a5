"""The socket of `--listen unix:///path`: made for one user, replaced when stale, removed at the end.

Standard library only, for the same reason as `listening`.  The file has mode 0600 from the moment it exists.
Whoever connects must also be this user, or root: a mode can be changed afterwards, an open folder renamed.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import NamedTuple

_UMASK = 0o177
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_MAX_PATH_BYTES = 107  # of sockaddr_un, without the zero behind it


class SocketFileError(OSError):
    """The socket cannot be made at this path; the text is for the user."""


class BoundFile(NamedTuple):
    """The file of a bound socket, to tell it from one that took its place."""

    path: str
    device: int
    inode: int

    def remove(self) -> None:
        """Remove the file if it is still the one that was made."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                os.unlink(self.path)
        except OSError:
            pass  # somebody else has removed it, or its folder


def bind_file(path: str) -> tuple[socket.socket, BoundFile]:
    """Return a bound socket, not listening yet, and its file; raise SocketFileError, OSError.

    To be called while the process has one thread: the umask belongs to all of them.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketFileError(f"the path of a socket has at most {_MAX_PATH_BYTES} bytes: {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            _bind_private(sock, path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(path)
            _bind_private(sock, path)
        found = os.lstat(path)
    except OSError:
        sock.close()
        raise
    return sock, BoundFile(path, found.st_dev, found.st_ino)


def peer_uid(sock: socket.socket) -> int:
    """Return the user of the process that connected, as the kernel noted it then."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def _bind_private(sock: socket.socket, path: str) -> None:
    old = os.umask(_UMASK)
    try:
        sock.bind(path)
    finally:
        os.umask(old)


def _remove_stale(path: str) -> None:
    """Remove a socket file of ours that nobody serves; raise SocketFileError where it is anything else."""
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketFileError(f"there is something else than a socket at {path}")
    if found.st_uid != os.geteuid():
        raise SocketFileError(f"the socket at {path} belongs to another user")
    if _is_served(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    # Taken away first, and looked at again: another server may have replaced it since, and its socket must
    # not be lost.
    aside = f"{path}.{os.getpid()}"
    if len(os.fsencode(aside)) > _MAX_PATH_BYTES:
        os.unlink(path)
        return
    os.rename(path, aside)
    served = _is_served(aside)
    if served:
        os.link(aside, path, follow_symlinks=False)
    os.unlink(aside)
    if served:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except ConnectionRefusedError:
            return False
    return True
