"""Who may ask a server or relay to be upgraded: its own user and root, and nobody more confined than it is.

What can be asked for is to run another program in the server's place, so no command in a sandbox may, whoever
has made the sandbox.  The kernel says who has connected.  A sandbox shows in that process: in a pid or user
namespace of its own, in `no_new_privs`, or in filters of system calls, and a process can shed none of these.
Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_SO_PEERPIDFD = 77  # Linux 6.5; the pid of a process that has ended may be another one's
_ROOT = 0
_NAMESPACES = ("pid", "user")


class Asker:
    """The process at the other end of a Unix socket, as the kernel noted it when that connected."""

    def __init__(self, sock: socket.socket) -> None:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(found)
        self._sock = sock

    def objection(self, of: str = "server") -> str | None:
        """Return why it may not ask, in words that name what it asks; None if it may."""
        if self.uid not in (_ROOT, os.geteuid()):
            return f"only the user of the {of}, and root, may upgrade it"
        if self.pid <= 0:
            return f"it is asked from a place whose processes the {of} does not see"
        try:
            pidfd = _pidfd_of(self._sock, self.pid)
        except OSError:
            return "the process that asked has ended"
        try:
            found = self._confinement(of)
        except (OSError, ValueError, KeyError) as error:
            found = f"whether the process that asked is in a sandbox cannot be seen: {error}"
        try:
            # What was looked at is that process only if it lives still.
            ended = _is_readable(pidfd)
        finally:
            os.close(pidfd)
        return "the process that asked has ended" if ended else found

    def _confinement(self, of: str) -> str | None:
        """Return how it is more confined than this process."""
        theirs, ours = _limits(self.pid), _limits(os.getpid())
        if any(their > our for their, our in zip(theirs, ours, strict=True)):
            return f"it is asked from inside a sandbox: a process there may not upgrade the {of}"
        # Root looks after itself: what is of a process of root another user cannot see.
        if self.uid == _ROOT != os.geteuid():
            return None
        for name in _NAMESPACES:
            if os.stat(f"/proc/{self.pid}/ns/{name}").st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
                return f"it is asked from another {name} namespace, as in a sandbox"
        return None


def _limits(pid: int) -> tuple[int, int, int]:
    """Return whether a process has no new privileges, whether it is filtered, and by how many filters."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        lines = dict(line.partition(":\t")[::2] for line in file)
    return (
        int(lines["NoNewPrivs"]),
        int(int(lines["Seccomp"]) > 0),
        int(lines.get("Seccomp_filters", 0)),  # Linux 5.9
    )


def _is_readable(fd: int) -> bool:
    poll = select.poll()  # `select` takes no descriptor above 1023, and a server may have many
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _pidfd_of(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)
