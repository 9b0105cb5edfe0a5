"""Making processes in namespaces of their own, and saying who they are there."""

from __future__ import annotations

import errno
import os
import struct

from execserver.sandbox.plan import NETWORK_HOST
from execserver.sandbox.privileges import set_dumpable
from execserver.sandbox.syscalls import AT_FDCWD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.syscalls import Kernel

    Limit = tuple[bytes, bytes]  # a kind of namespaces, and how many of it

NEW_MOUNTS = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

_AS_SIBLING = 0x00008000  # CLONE_PARENT
_SIGCHLD = 17
_NEEDED = (b"user", b"mnt", b"pid", b"net", b"ipc", b"uts")  # what views are made of
_MOST_NAMESPACES = b"1024"  # of each kind inside; a user has some thousands at least
_CLONE_ARGUMENTS = struct.Struct("=8Q")
# What a kernel, a limit or a filter answers where user namespaces are not to be had.
_NO_USER_NAMESPACE = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.EINVAL, errno.ENOSYS)


class Identity:
    """Who a process was before it entered a user namespace, where the kernel does not tell any more."""

    __slots__ = ("gid", "uid")

    def __init__(self) -> None:
        self.uid = os.geteuid()
        self.gid = os.getegid()


def flags_for(plan: ViewPlan) -> int:
    """Return the namespaces a plan needs, a user namespace among them."""
    flags = NEW_USER | NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS
    return flags if plan.network == NETWORK_HOST else flags | NEW_NETWORK


def fork_into(kernel: Kernel, flags: int, sibling: bool = False) -> tuple[int, bool]:
    """Fork into new namespaces; return the child's pid (0 in the child) and whether it has a user namespace.

    Real root to whom only user namespaces are refused goes without one.  The caller has one thread, and the
    child runs no hooks of the interpreter.  A sibling is a child of the caller's parent, who gets SIGCHLD for
    it.  Raises OSError.
    """
    flags |= _AS_SIBLING if sibling else 0
    try:
        return _clone(kernel, flags), bool(flags & NEW_USER)
    except OSError as error:
        if not flags & NEW_USER or os.geteuid() != 0 or error.errno not in _NO_USER_NAMESPACE:
            raise
        refused = error
    try:
        return _clone(kernel, flags & ~NEW_USER), False
    except OSError:
        raise refused from None


def map_own_ids(kernel: Kernel, identity: Identity) -> None:
    """Map this user and group to themselves and nobody else, in a new user namespace.  Raises OSError.

    The maps belong to the user only while the process is dumpable; it is not before and afterwards.
    """
    set_dumpable(kernel, True)
    try:
        _write(kernel, b"/proc/self/setgroups", b"deny")
        _write(kernel, b"/proc/self/uid_map", b"%d %d 1" % (identity.uid, identity.uid))
        _write(kernel, b"/proc/self/gid_map", b"%d %d 1" % (identity.gid, identity.gid))
    finally:
        set_dumpable(kernel, False)


def limits_of(identity: Identity | None) -> tuple[Limit, ...]:
    """Return the kinds of namespaces that would be a way around the view, or take them from others.

    In a control group namespace of its own a process may mount the control groups, which are read-only in the
    view, and write what its user owns there: freeze or kill the server, for one.  User 0 owns it all, and
    a user namespace is of no use to him: the kernel lets him not be mapped again.  What others make inside
    counts for them outside, too, where a start needs one of each kind.
    """
    if identity is None:
        return ()  # there is no user namespace to limit, and none to be had inside
    if identity.uid == 0:
        return (b"cgroup", b"0"), (b"user", b"0")
    return (b"cgroup", b"0"), *((kind, _MOST_NAMESPACES) for kind in _NEEDED)


def _clone(kernel: Kernel, flags: int) -> int:
    signal = 0 if flags & _AS_SIBLING else _SIGCHLD  # a sibling ends with the signal of the caller
    try:
        arguments = _CLONE_ARGUMENTS.pack(flags, 0, 0, 0, signal, 0, 0, 0)
        return kernel.call("clone3", arguments, _CLONE_ARGUMENTS.size)
    except OSError as error:
        # Filters that cannot look behind the pointer refuse the call as a whole.
        if error.errno != errno.ENOSYS:
            raise
    return kernel.call("clone", flags | signal, 0, 0, 0, 0)


def _write(kernel: Kernel, path: bytes, content: bytes) -> None:
    descriptor = kernel.call("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0)
    try:
        kernel.call("write", descriptor, content, len(content))
    finally:
        kernel.close(descriptor)
