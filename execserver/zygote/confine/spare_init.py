"""The spare init of a filter template: a fork in namespaces of its own that waits to become a sandbox init.

Making namespaces takes a millisecond, which a start need not wait for when a process stands ready.  It serves
one command and never another.  It has entered no sandbox root and looked at nothing that a start looks at: it
holds fresh namespaces, and a copy of the host's mounts.  So it is used only where no mount has come or gone
since its fork, for FRESH_S at most, and only with recorded calls that were known then.  It runs our code only
and has no descriptor but its socket, whose end ends it.
"""

from __future__ import annotations

import _socket
import gc
import os
import select
import time

from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.namespaces import fork_into
from execserver.zygote.channel import receive_record, send_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.rootfs.recorded import RecordedRoot

    # What the spare becomes with a start's bytes and descriptors, and whether it has a user namespace.  With
    # no descriptors it only goes through the bytes.
    Become = Callable[[bytes, Sequence[int], bool], None]

NAME = b"execserver-next"  # in lists of processes, until it is used
FRESH_S = 10.0
_PR_SET_NAME = 15
_SOCKET = 3


class MountChanges:
    """Tells whether a mount of this process's namespace has come or gone; owns a descriptor.

    Raises OSError where there is no /proc.
    """

    def __init__(self) -> None:
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._table, select.POLLPRI)

    def are_there(self) -> bool:
        """Return whether there was a change since the last question, or since the beginning."""
        return bool(self._poll.poll(0))


class SpareInit:
    """The template's side of its spare, of which there is one or none."""

    def __init__(self, kernel: Kernel, become: Become) -> None:
        self._kernel = kernel
        self._become = become
        self._socket: _socket.socket | None = None
        self._pid = 0
        self._flags = 0
        self._made = 0.0
        self._known: Sequence[RecordedRoot] = ()
        try:
            self._changes: MountChanges | None = MountChanges()
        except OSError:
            self._changes = None

    def make(self, flags: int, known: Sequence[RecordedRoot], example: bytes) -> None:
        """Fork a spare for starts with namespaces of these flags, and with one of these recorded roots.

        `example` are the bytes of a start.  Where it cannot be made, there is none.
        """
        self.drop()
        if self._changes is None:
            return
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            self._changes.are_there()  # what comes from here on counts
            pid, mapped = fork_into(self._kernel, flags, sibling=True)
        except OSError:
            ours.close()
            theirs.close()
            return
        if pid == 0:
            try:
                self._wait(theirs, mapped, example)
            finally:
                os._exit(1)
        theirs.close()  # else its end would not be seen here
        self._socket, self._pid, self._flags, self._known = ours, pid, flags, known
        self._made = time.monotonic()

    def take(self, flags: int, recorded: RecordedRoot, start: bytes, descriptors: Sequence[int]) -> int:
        """Have the spare become the sandbox init of a start; return its pid, or 0 if it cannot be used."""
        sock, self._socket = self._socket, None
        if sock is None:
            return 0
        try:
            is_fresh = time.monotonic() - self._made < FRESH_S and flags == self._flags
            if not is_fresh or not any(one is recorded for one in self._known) or self._are_changes():
                return 0
            send_record(sock, start, descriptors)
            return self._pid
        except OSError:
            return 0  # it has been killed
        finally:
            sock.close()

    def drop(self) -> None:
        """End the spare, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _are_changes(self) -> bool:
        return self._changes is None or self._changes.are_there()

    def _wait(self, sock: _socket.socket, mapped: bool, example: bytes) -> None:
        """Be the spare; never returns."""
        gc.disable()
        privileges.set_dumpable(self._kernel, False)
        os.dup2(sock.detach(), _SOCKET, inheritable=False)
        privileges.close_from(self._kernel, _SOCKET + 1)
        self._kernel.call("prctl", _PR_SET_NAME, NAME)
        # Once without a command: each page that is written to is copied now and not in a start.
        self._become(example, (), mapped)
        received = receive_record(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _SOCKET))
        if received is None:
            os._exit(0)
        self._become(*received, mapped)
