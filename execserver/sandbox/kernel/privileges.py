"""Gives up, for good, what a confined process must not have: capabilities, keys, descriptors."""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CAP_AMBIENT_CLEAR_ALL = 4
# User 0 gets no capabilities, none are kept over a change of user, none become ambient; each bit is locked.
_SECUREBITS = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SIGKILL = 9
_MOST_DESCRIPTORS = 0xFFFFFFFF


def die_with_parent(kernel: Kernel, signal: int = _SIGKILL) -> None:
    """Have this process get a signal when the thread that made it ends.

    That thread may have ended before: the caller checks.
    """
    kernel.call("prctl", _PR_SET_PDEATHSIG, signal)


def set_dumpable(kernel: Kernel, dumpable: bool) -> None:
    """Open or close this process's memory and /proc entries to processes of the same user."""
    kernel.call("prctl", _PR_SET_DUMPABLE, int(dumpable))


def leave_session_keyring(kernel: Kernel) -> None:
    """Leave the session keyring behind: the keys of the login that the server was started from."""
    # This kernel may have no keys, or a filter may refuse the call.
    kernel.attempt("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


def no_new_privileges(kernel: Kernel) -> None:
    """Make set-user-id bits and file capabilities void for this process and all that it starts."""
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

    A user namespace made later begins with full sets of its own, which are worth nothing outside it.
    """
    # CAP_SETFCAP goes, too, so root can make no user namespace that maps user 0 (Linux 5.12): that capability
    # would be a way out of the sandbox.
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
    """Give up the capabilities of this process; only a program that it executes can have them again."""
    kernel.call("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def close_from(kernel: Kernel, first: int) -> None:
    """Close every descriptor from `first` on.  Raises OSError."""
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
