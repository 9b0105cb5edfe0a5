"""Giving up, for good, what a confined process must not have."""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.syscalls import Kernel

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CAP_AMBIENT_CLEAR_ALL = 4
# No capabilities for user 0, none kept over a change of user, none raised as ambient; each with its lock.
_SECUREBITS = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SIGKILL = 9
_MOST_DESCRIPTORS = 0xFFFFFFFF


def die_with_parent(kernel: Kernel) -> None:
    """Have this process killed when the thread that made it ends; the caller checks that it had not yet."""
    kernel.call("prctl", _PR_SET_PDEATHSIG, _SIGKILL)


def set_dumpable(kernel: Kernel, dumpable: bool) -> None:
    """Open or close this process's memory and /proc entries to processes of the same user."""
    kernel.call("prctl", _PR_SET_DUMPABLE, int(dumpable))


def leave_session_keyring(kernel: Kernel) -> None:
    """Leave the keys of the login session behind, where the kernel has any."""
    # There may be no keys in this kernel, or a filter that keeps everybody from them.
    kernel.attempt("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


def no_new_privileges(kernel: Kernel) -> None:
    """Make set-user-id programs and file capabilities void here and in all that is started."""
    kernel.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def capabilities(kernel: Kernel) -> int:
    """Return how many capabilities the kernel knows; asks once.  Raises OSError."""
    known = kernel.known.get("capabilities")
    if known is None:
        known = kernel.known["capabilities"] = sum(_knows(kernel, number) for number in range(64))
    return known


def _knows(kernel: Kernel, capability: int) -> bool:
    try:
        kernel.call("prctl", _PR_CAPBSET_READ, capability, 0, 0, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def drop_capabilities(kernel: Kernel) -> None:
    """Empty every capability set, the bounding set included, also for user 0.  Raises OSError.

    A user namespace made later starts with its own full sets, which are worth nothing outside of it.
    """
    for capability in range(capabilities(kernel)):
        kernel.call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    try:
        kernel.call("prctl", _PR_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 4.3
            raise
    kernel.call("prctl", _PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0)
    empty_capabilities(kernel)


def empty_capabilities(kernel: Kernel) -> None:
    """Give up the capabilities of this process, which only a program that it executes may have again."""
    kernel.call("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def close_from(kernel: Kernel, first: int) -> None:
    """Close every descriptor from a number on."""
    try:
        kernel.call("close_range", first, _MOST_DESCRIPTORS, 0)
        return
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself
