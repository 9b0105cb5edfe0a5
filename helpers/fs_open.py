"""`fs/open` of the file helper: the opened file goes to the caller over the socket that stdin is."""

from __future__ import annotations

import _socket
import errno
import os
import stat

from execserver.files.opening import emptied

_STDIN = 0
_NOTE = b"\0"  # a descriptor is sent with a byte at least; the contract's program sends this one


def hand_over(fd: int, path: bytes, *, replace: bool) -> None:
    """Send an open file to the caller and close it here; with `replace` it is emptied before.

    Raises OSError ENOTSOCK where stdin is no socket, before anything is done to the file.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(_STDIN).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        if replace:
            fd, given = -1, fd
            fd = emptied(given, path)  # closes what it refuses
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))
        # With family and type given, Python does not ask the kernel for them.
        caller = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, _STDIN)
        try:
            caller.sendmsg([_NOTE], [rights])
        finally:
            caller.detach()
    finally:
        if fd >= 0:
            os.close(fd)
