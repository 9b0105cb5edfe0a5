"""Open files: commands get fewer than we keep, so that they cannot use up what all of a user's share.

The kernel counts the descriptors in messages that nobody has received yet, for each user over all processes
and namespaces, and lets a process send more only while there are no more of them than its own soft limit of
open files.  What passes descriptors here, the server, zygote and file workers, has a higher limit than any
command can give itself.
"""

from __future__ import annotations

import _socket
import errno
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Rights = tuple[int, int, bytes]

_RESERVE = 2048  # the last message of each of some processes at once may go beyond its limit, by 253
_MOST = 1 << 20


def leave_descriptors_to_others() -> None:
    """Lower the calling process's limit of open files for good.  Raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = _MOST if hard < 0 else hard
    room = hard - min(_RESERVE, hard // 4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (room if soft < 0 else min(soft, room), room))


def send(sock: _socket.socket, data: bytes, rights: Sequence[Rights], flags: int = 0) -> None:
    """Send a message with descriptors, also when a command of the same user keeps many in messages unread."""
    flags |= _socket.MSG_NOSIGNAL
    try:
        sock.sendmsg([data], rights, flags)
        return
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        sock.sendmsg([data], rights, flags)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
