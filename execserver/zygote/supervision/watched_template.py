"""The compiled template of one exec supervisor: it forks one sandbox init, which is watched.

A supervisor has one of its own, since the init must be its child: so it may trace what is inside, and ends it
by its own end.  It is spawned and not forked, for a fork copies the pages of an interpreter; so nobody
installs a filter before it, and the init does, as its plan says.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from execserver.zygote.channel import send_record
from execserver.zygote.confine.compiled_template import CompiledTemplate, hello
from execserver.zygote.confine.filter_template import NAME, READY, SOCKET
from execserver.zygote.supervision.trap import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.rootfs.compiled import CompiledRoot
    from execserver.zygote.libc import Libc

_SUPERVISORS = b"supervisor"  # any second word says whose it is
_WATCH, _SPARE = 4, 5
_HEAD = struct.Struct("<IIQ")  # kind, size, flags: of a listener, or of the clone


class WatchedTemplate(CompiledTemplate):
    """The supervisor's side.  The process serves one start, and ends when this is closed."""

    def __init__(self, kernel: Kernel, libc: Libc, program: bytes) -> None:
        super().__init__(kernel, program, "")
        self._libc = libc

    @property
    def descriptor(self) -> int:
        """The one descriptor that it owns; -1 for none."""
        return -1 if self._socket is None else self._socket.fileno()

    def make_spare(self, root: CompiledRoot, flags: int) -> None:
        """Have the process know a plan, and wait with an init in namespaces of these flags."""
        if self.start() and self._socket is not None:
            _, _, plans = self._plan(root)
            order = _HEAD.pack(_SPARE, _HEAD.size, flags)
            for data in (*(data for data, _ in plans), order):
                send_record(self._socket, data)

    def close(self) -> None:
        """Let the process end; whoever reaps this process's children hears of that."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _start(self) -> bool:
        self._numbers.clear()
        listener = notify.listener_filter(self._kernel)
        if not self._program or listener is None:
            return False
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid = self._libc.spawn_on_socket(self._program, [NAME, _SUPERVISORS], theirs.fileno(), SOCKET)
            theirs.close()  # else its end would not be seen here
            if ours.recv(1) != READY:
                raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC))
            send_record(ours, hello())
            send_record(ours, _watch(*listener))
        except OSError:
            theirs.close()
            ours.close()
            self._program = b""  # Python forks, then
            return False
        self._socket, self._pid = ours, pid
        return True


def _watch(code: bytes, flags: int) -> bytes:
    return _HEAD.pack(_WATCH, _HEAD.size + len(code), flags) + code
