"""Landlock: rules about files, sockets and signals that a process puts on itself for good.

Commands in a view get the scopes only: no file rights are handled, so a sandbox inside can still mount.  File
workers, and commands where there is nothing else, get the file rights too.
"""

from __future__ import annotations

import os
import stat
import struct

from execserver.sandbox.identity import check_identity
from execserver.sandbox.mounts_old import OldMounts
from execserver.sandbox.plan import NETWORK_HOST, READ, ROOT_EMPTY, ROOT_HOST, ROOT_WRITABLE, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.syscalls import Kernel

_VERSION = 1  # flag of landlock_create_ruleset
_PATH_BENEATH = 1
_RULESET = struct.Struct("@QQQ")
_RULE = struct.Struct("=Qi")
LEAST_ABI_IN_VIEW = 2  # before, nothing could be renamed from one folder to another
SCOPED_ABI = 6  # the first that knows scopes, and the domain every command gets
_SCOPE_ABSTRACT_SOCKETS = 1
_SCOPE_SIGNALS = 2

_REFERENCE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READING = EXECUTE | READ_FILE | READ_DIR
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_FIRST_RIGHTS = (1 << 13) - 1
# What later ABIs added to the rights of the first.
_LATER_RIGHTS = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE))


def abi(kernel: Kernel) -> int:
    """Return the version of Landlock that the kernel offers; 0 for none."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def file_rights(version: int) -> int:
    """Return every file right that a version knows."""
    rights = _FIRST_RIGHTS
    for since, right in _LATER_RIGHTS:
        if version >= since:
            rights |= right
    return rights


def restrict_scope(kernel: Kernel, version: int, plan: ViewPlan) -> bool:
    """Keep the calling process from signalling what is outside, and from abstract sockets of the host.

    Returns False where the kernel cannot; namespaces protect there.  Needs no_new_privs.
    """
    if version < SCOPED_ABI:
        return False
    _restrict(kernel, _ruleset(kernel, version, 0, _scopes(plan)))
    return True


def restrict_files(kernel: Kernel, version: int, plan: ViewPlan, within_view: bool = True) -> None:
    """Allow the calling process the files of the plan and no others, as far as Landlock can say it.

    Inside the view everything there may be read, and written below the plan's writable mounts.  Without a
    view the same mounts mean the host's files; one that is not what it was is a refusal.  Raises OSError,
    ENOSYS without Landlock.
    """
    rights = file_rights(version)
    ruleset = _ruleset(kernel, version, rights, _scopes(plan) if version >= SCOPED_ABI else 0)
    try:
        if within_view or plan.root != ROOT_EMPTY:
            _allow(kernel, ruleset, os.open("/", _REFERENCE), READING)
        if plan.root in (ROOT_HOST, ROOT_WRITABLE):
            _allow(kernel, ruleset, os.open("/", _REFERENCE), rights)
        # Inside, all of /dev is the view's own.
        _allow(kernel, ruleset, os.open("/dev" if within_view else "/dev/null", _REFERENCE), rights)
        opener = OldMounts(kernel)
        for mount in plan.mounts:
            if mount.kind == WRITE or (mount.kind == READ and not within_view):
                opened = opener.open_source(mount.path)
                if not within_view:
                    check_identity(mount.identity, opened)
                _allow(kernel, ruleset, opened, rights if mount.kind == WRITE else READING)
    except OSError:
        os.close(ruleset)
        raise
    _restrict(kernel, ruleset)


def _scopes(plan: ViewPlan) -> int:
    # Where the network is the host's, its abstract sockets are part of it.
    return _SCOPE_SIGNALS | (0 if plan.network == NETWORK_HOST else _SCOPE_ABSTRACT_SOCKETS)


def _ruleset(kernel: Kernel, version: int, rights: int, scopes: int) -> int:
    attributes = _RULESET.pack(rights, 0, scopes)
    # A kernel takes only as much as it knows; what is left off is zero.
    size = 24 if version >= SCOPED_ABI else 16 if version >= 4 else 8
    return kernel.call("landlock_create_ruleset", attributes[:size], size, 0)


def _allow(kernel: Kernel, ruleset: int, opened: int, rights: int) -> None:
    """Grant rights on what a descriptor refers to, and all below it; closes the descriptor."""
    try:
        granted = rights if stat.S_ISDIR(os.fstat(opened).st_mode) else rights & _ON_FILES
        kernel.call("landlock_add_rule", ruleset, _PATH_BENEATH, _RULE.pack(granted, opened), 0)
    finally:
        os.close(opened)


def _restrict(kernel: Kernel, ruleset: int) -> None:
    try:
        kernel.call("landlock_restrict_self", ruleset, 0)
    finally:
        kernel.close(ruleset)
