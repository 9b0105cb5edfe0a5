"""Forks processes into new namespaces, maps their ids there, and limits further namespaces."""

from __future__ import annotations

import errno
import os
import struct

from execserver.sandbox.kernel.privileges import set_dumpable
from execserver.sandbox.kernel.syscalls import AT_FDCWD
from execserver.sandbox.plan import NETWORK_HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import SandboxPlan

    Limit = tuple[bytes, bytes]  # a kind of namespaces, and how many of it

NEW_MOUNTS = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

_AS_SIBLING = 0x00008000  # CLONE_PARENT
_INTO_GROUP = 0x2_0000_0000  # CLONE_INTO_CGROUP
_SIGCHLD = 17
_NEEDED = (b"user", b"mnt", b"pid", b"net", b"ipc", b"uts")  # what a sandbox needs one of each of
_MOST_NAMESPACES = b"1024"  # of each kind inside; a user may have some thousands at least
_CLONE_ARGUMENTS = struct.Struct("=8Q")
_GROUP_ARGUMENTS = struct.Struct("=8Q16xQ")  # of Linux 5.7, with the descriptor of a control group
# The errors of a kernel, a limit or a filter that allows no user namespaces.
_NO_USER_NAMESPACE = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.EINVAL, errno.ENOSYS)


class Identity:
    """The user and group of a process before it entered a user namespace: inside, the kernel hides them."""

    __slots__ = ("gid", "uid")

    def __init__(self) -> None:
        self.uid = os.geteuid()
        self.gid = os.getegid()


def flags_for(plan: SandboxPlan) -> int:
    """Return the clone flags of the namespaces that a plan needs, a user namespace among them."""
    flags = NEW_USER | NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS
    return flags if plan.network == NETWORK_HOST else flags | NEW_NETWORK


def fork_into(kernel: Kernel, flags: int, sibling: bool = False, group: int = -1) -> tuple[int, bool]:
    """Fork into new namespaces; return the child's pid (0 in the child) and whether it has a user namespace.

    Real root goes without a user namespace where only these are refused.  The caller has one thread, and the
    child runs no fork hooks of the interpreter.  With `sibling` the child becomes a child of the caller's
    parent, which gets SIGCHLD for it.  It begins in the control group of the descriptor `group`, if that is
    given.  Raises OSError.
    """
    flags |= _AS_SIBLING if sibling else 0
    try:
        return _clone(kernel, flags, group), bool(flags & NEW_USER)
    except OSError as error:
        if not flags & NEW_USER or os.geteuid() != 0 or error.errno not in _NO_USER_NAMESPACE:
            raise
        refused = error
    try:
        return _clone(kernel, flags & ~NEW_USER, group), False
    except OSError:
        raise refused from None


def map_own_ids(kernel: Kernel, identity: Identity) -> None:
    """Map this user and group to themselves and nobody else, in a new user namespace.  Raises OSError."""
    # The maps in /proc belong to the user only while the process is dumpable.  It is not before and after.
    set_dumpable(kernel, True)
    try:
        _write(kernel, b"/proc/self/setgroups", b"deny")
        _write(kernel, b"/proc/self/uid_map", b"%d %d 1" % (identity.uid, identity.uid))
        _write(kernel, b"/proc/self/gid_map", b"%d %d 1" % (identity.gid, identity.gid))
    finally:
        set_dumpable(kernel, False)


def limits_of(identity: Identity | None) -> tuple[Limit, ...]:
    """Return the kinds of namespaces to limit inside, with their limits.

    `identity` is None where there is no user namespace.
    """
    # In a control group namespace of its own a process may mount the control groups, which the sandbox root
    # shows read-only, and write what its user owns there: freeze or kill the server, for one.
    if identity is None:
        return ()  # there is no user namespace to limit, and none can be made inside
    if identity.uid == 0:
        # User 0 owns all control groups.  A user namespace would be of no use to root: the kernel does not
        # let it map user 0 again.
        return (b"cgroup", b"0"), (b"user", b"0")
    # What is made inside counts for this user outside, too, where each start needs one of each kind.
    return (b"cgroup", b"0"), *((kind, _MOST_NAMESPACES) for kind in _NEEDED)


def limit(kernel: Kernel, proc: int, kind: bytes, most: bytes) -> None:
    """Allow at most `most` (digits) namespaces of a kind in this user namespace and those below it.

    `proc` is a procfs of this user namespace.  Raises OSError.
    """
    path = b"sys/user/max_%s_namespaces" % kind
    try:
        limit = _open_setting(kernel, proc, path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return  # a kernel without the kind, or without settings
    try:
        kernel.call("write", limit, most, len(most))
    finally:
        # A close that is not put off (`Recording.close` would): while a file in it is open for writing, the
        # kernel refuses to make a mount read-only.
        kernel.call("close", limit)


def _open_setting(kernel: Kernel, proc: int, path: bytes) -> int:
    """Open a setting of this user namespace for writing, in a new /proc or else in the machine's own."""
    try:
        return kernel.call("openat", proc, path, os.O_WRONLY | os.O_CLOEXEC, 0)
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
    # So Linux 4.15 in the procfs of a user namespace.  Which namespace it is of depends on the process alone.
    return kernel.call("openat", AT_FDCWD, b"/proc/" + path, os.O_WRONLY | os.O_CLOEXEC, 0)


def _clone(kernel: Kernel, flags: int, group: int) -> int:
    # A raw fork: the interpreter's fork hooks are not needed, since there is one thread and nothing is
    # imported afterwards.  There is no third way: what refuses namespaces to `clone` refuses them to
    # `unshare`.
    signal = 0 if flags & _AS_SIBLING else _SIGCHLD  # a sibling ends with the signal of the caller
    try:
        if group >= 0:
            arguments = _GROUP_ARGUMENTS.pack(flags | _INTO_GROUP, 0, 0, 0, signal, 0, 0, 0, group)
        else:
            arguments = _CLONE_ARGUMENTS.pack(flags, 0, 0, 0, signal, 0, 0, 0)
        return kernel.call("clone3", arguments, len(arguments))
    except OSError as error:
        # A filter cannot look at a structure behind a pointer, so some refuse the call as a whole.
        if error.errno != errno.ENOSYS or group >= 0:
            raise
    return kernel.call("clone", flags | signal, 0, 0, 0, 0)


def _write(kernel: Kernel, path: bytes, content: bytes) -> None:
    descriptor = kernel.call("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0)
    try:
        kernel.call("write", descriptor, content, len(content))
    finally:
        kernel.close(descriptor)
