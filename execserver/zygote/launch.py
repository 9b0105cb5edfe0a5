"""Starting the zygote: the server's first act, before gevent is imported and before any secret is read."""

from __future__ import annotations

import _socket
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVER_SOCKET = 3
# All but the two numbers that the C library keeps for itself and lets nobody name.
EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))


class ZygoteProcess:
    """A started zygote: its pid, and the server's end of the socket, a descriptor that the holder owns."""

    __slots__ = ("pid", "sock_fd")

    def __init__(self, pid: int, sock_fd: int) -> None:
        self.pid = pid
        self.sock_fd = sock_fd


def start_zygote(command: Sequence[bytes], soft_nofile: int) -> ZygoteProcess:
    """Exec a zygote with an empty environment in its own session; return before it is ready.

    `command` is the argv that runs the entry point; `soft_nofile` is the soft limit of open files for its
    children.  The socket is close-on-exec and non-blocking.  Raises OSError.
    """
    ensure_stdio()
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        pid = os.posix_spawn(
            command[0],
            [*command, b"%d" % soft_nofile],
            {},  # no secret of the server's environment gets into a process whose forks become commands
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), _SERVER_SOCKET),
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
                (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=EVERY_SIGNAL,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    # Only this end: the zygote may block in a send, the server's event loop must not.
    ours.setblocking(False)
    return ZygoteProcess(pid, ours.detach())


def ensure_stdio() -> None:
    """Open the null device on those of 0, 1 and 2 that are closed.

    A socket that got one of these numbers would be some program's stdio.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open("/dev/null", os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
