"""A spare: a fork that waits to become the process of a start, which then need not wait for the fork.

It serves one start and never another.  It runs our code only and has no descriptor but its socket, whose end
ends it, and what it opens itself.  Whoever makes it has one or none.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import os
import time

from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.namespaces import fork_into
from execserver.zygote.channel import receive_record, send_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel

    # What the spare becomes with a start's bytes and descriptors, and whether it has a user namespace.  With
    # no descriptors it only goes through the bytes.
    Become = Callable[[bytes, Sequence[int], bool], None]

NAME = b"execserver-next"  # in lists of processes, from when it is ready until it is used
SOCKET = 3  # its number there
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_NAME_BYTES = 16
_SIGKILL = 9


class Spare:
    """The maker's side.  With `sibling` its parent is the maker's, which reaps it."""

    def __init__(self, kernel: Kernel, become: Become, *, sibling: bool) -> None:
        self._kernel = kernel
        self._become = become
        self._sibling = sibling
        self._socket: _socket.socket | None = None
        self._made = 0.0
        self.pid = 0  # of the last one

    @property
    def is_there(self) -> bool:
        """True while there is one, as far as is known."""
        return self._socket is not None

    def fork(self, flags: int, example: bytes) -> bool:
        """Fork one into namespaces of these flags, in place of one that is there; return whether it worked.

        `example` are the bytes of a start.
        """
        self.drop()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid, mapped = fork_into(self._kernel, flags, sibling=self._sibling)
        except OSError:
            ours.close()
            theirs.close()
            return False
        if pid == 0:
            try:
                self._wait(theirs, mapped, example)
            finally:
                os._exit(1)
        theirs.close()  # else its end would not be seen here
        self._socket, self.pid, self._made = ours, pid, time.monotonic()
        return True

    def hand_over(self, start: bytes, descriptors: Sequence[int], fresh_s: float) -> int:
        """Give the spare a start; return its pid, or 0 if there is none, or one that is older."""
        if self._socket is None or time.monotonic() - self._made >= fresh_s:
            self.drop()
            return 0
        try:
            send_record(self._socket, start, descriptors)
        except OSError:  # it has been killed
            self.drop()
            return 0
        self._socket.close()
        self._socket = None
        return self.pid

    def drop(self) -> None:
        """End the spare, if there is one."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        if not self._sibling:
            try:
                os.kill(self.pid, _SIGKILL)
                os.waitpid(self.pid, 0)
            except OSError:
                pass  # it has ended, and was reaped

    def forget(self, pid: int) -> None:
        """Take the end of a child that was reaped: its number may soon be another one's."""
        if pid == self.pid and self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait(self, sock: _socket.socket, mapped: bool, example: bytes) -> None:
        """Be the spare; never returns."""
        gc.disable()
        privileges.set_dumpable(self._kernel, False)
        os.dup2(sock.detach(), SOCKET, inheritable=False)
        privileges.close_from(self._kernel, SOCKET + 1)
        # Once without a command: each page that is written to is copied now and not in a start.
        self._become(example, (), mapped)
        before = ctypes.create_string_buffer(_NAME_BYTES)
        self._kernel.call("prctl", _PR_GET_NAME, before)
        self._kernel.call("prctl", _PR_SET_NAME, NAME)
        received = self._received(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, SOCKET))
        if received is None:
            os._exit(0)
        self._kernel.call("prctl", _PR_SET_NAME, before)
        self._become(*received, mapped)

    def _received(self, sock: _socket.socket) -> tuple[bytes, list[int]] | None:
        return receive_record(sock)
