"""What the first process of a sandbox does before anything else, whether it was written down or not."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from execserver.sandbox import privileges
from execserver.sandbox.namespaces import map_own_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.namespaces import Identity
    from execserver.sandbox.syscalls import Kernel

# All but the two numbers the C library keeps for itself.
EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))
_SIGNAL_MASK = struct.pack("=Q", sum(1 << number - 1 for number in EVERY_SIGNAL))
_SET_MASK = 2
_POLL = struct.Struct("=ihh")


def tie_to_starter(kernel: Kernel) -> None:
    """Let this process end with its starter and lead a session; no signal but its child's end concerns it."""
    privileges.set_dumpable(kernel, False)
    privileges.die_with_parent(kernel)
    kernel.call("rt_sigprocmask", _SET_MASK, _SIGNAL_MASK, None, len(_SIGNAL_MASK))
    kernel.run(os.setsid)


def say_who(kernel: Kernel, identity: Identity | None, report: int) -> None:
    """Make sure that the starter lives, leave its keys, and be its user and group in here, too."""
    # The starter's pid means nothing in here; it lives if it holds its end of the pipe.
    watched = ctypes.create_string_buffer(_POLL.pack(report, 0, 0), _POLL.size)
    if kernel.call("ppoll", watched, 1, bytes(16), None, 0):
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
    privileges.leave_session_keyring(kernel)
    if identity is not None:
        map_own_ids(kernel, identity)
