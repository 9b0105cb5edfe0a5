"""Limits of open files: lower for commands than for us, since the processes of a user share some of them.

The kernel counts the descriptors in unread messages for each user, over all processes and namespaces.  A
process may send more only while that count is not above its own soft limit of open files.  The server, the
zygote and the file workers pass descriptors, so they have a higher limit than any command can give itself.
"""

from __future__ import annotations

import _socket
import errno
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Rights = tuple[int, int, bytes]

_RESERVE = 2048  # processes that send at the same moment may each exceed the limit by one message: 253
_MOST = 1 << 20


def leave_descriptors_to_others() -> None:
    """Lower the calling process's limit of open files for good: by 2048, at most by a quarter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = _MOST if hard < 0 else hard
    room = hard - min(_RESERVE, hard // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (room if soft < 0 else min(soft, room), room))


def send(sock: _socket.socket, data: bytes, rights: Sequence[Rights], flags: int = 0) -> None:
    """Send a message with descriptors, also while a command of the same user keeps many unread.

    Raises OSError.
    """
    flags |= _socket.MSG_NOSIGNAL
    try:
        sock.sendmsg([data], rights, flags)
        return
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
    # Only now: raising the limit beforehand would cost every message two system calls.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        sock.sendmsg([data], rights, flags)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
