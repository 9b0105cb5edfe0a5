"""Landlock: rules about files, sockets and signals that a process takes on for good.

This module has the calls, and the rules for file workers and for the Landlock back end, which handle every
file right.  The rules for commands in a sandbox root are in `rootfs.landlock_rules`.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct

from execserver.sandbox.identity import check_identity
from execserver.sandbox.kernel.landlock_paths import all_but_devices
from execserver.sandbox.kernel.mounts_old import OldMounts
from execserver.sandbox.plan import NETWORK_HOST, READ, ROOT_EMPTY, ROOT_HOST, ROOT_WRITABLE, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import SandboxPlan

_VERSION = 1  # flag of landlock_create_ruleset
_PATH_BENEATH = 1
_RULESET = struct.Struct("@QQQ")
_RULE = struct.Struct("=Qi")
LEAST_ABI_IN_ROOT = 2  # before, nothing could be renamed from one directory to another
SCOPED_ABI = 6  # the first that knows scopes; from here on every command gets a domain
_SCOPE_ABSTRACT_SOCKETS = 1
_SCOPE_SIGNALS = 2

_READABLE_DEVICES = (b"zero", b"full", b"random", b"urandom")
_REFERENCE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READING = EXECUTE | READ_FILE | READ_DIR
REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
# What a process may do with an open file anyway.
_HELD = {os.O_RDONLY: READ_FILE, os.O_WRONLY: WRITE_FILE, os.O_RDWR: READ_FILE | WRITE_FILE}
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_FIRST_RIGHTS = (1 << 13) - 1
# What later ABIs added to the rights of the first.
_LATER_RIGHTS = ((2, REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE))


def abi(kernel: Kernel) -> int:
    """Return the Landlock ABI of the kernel; 0 without Landlock."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def file_rights(version: int) -> int:
    """Return every file right that an ABI knows."""
    rights = _FIRST_RIGHTS
    for since, right in _LATER_RIGHTS:
        if version >= since:
            rights |= right
    return rights


def scope_rules(kernel: Kernel, version: int, plan: SandboxPlan) -> int | None:
    """Return a ruleset against signals to processes outside, and against abstract sockets of the host.

    Returns None where the kernel has no scopes; namespaces protect there.
    """
    return make_rules(kernel, version, 0, plan) if version >= SCOPED_ABI else None


def restrict_files(kernel: Kernel, version: int, plan: SandboxPlan, within_root: bool = True) -> None:
    """Allow the calling process the files of the plan and no others, as far as Landlock can express it.

    Inside a sandbox root everything may be read, and written below the plan's writable mounts.  Without one
    (`within_root` is False) the same mounts stand for the host's files; an object that was replaced is
    refused.  Raises OSError; ENOSYS without Landlock.
    """
    rights = file_rights(version)
    ruleset = make_rules(kernel, version, rights, plan)
    try:
        if within_root:
            _allow(kernel, ruleset, os.open("/", _REFERENCE), READING)
            # All of /dev is the sandbox root's own.
            _allow(kernel, ruleset, os.open("/dev", _REFERENCE), rights)
        else:
            if plan.root != ROOT_EMPTY:
                # Every directory may be listed: names are no secret.
                _allow(kernel, ruleset, os.open("/", _REFERENCE), READ_DIR)
                for path in all_but_devices():
                    _allow_what_is_there(kernel, ruleset, path, READING)
            _allow_devices(kernel, ruleset, rights)
        if plan.root in (ROOT_HOST, ROOT_WRITABLE):
            _allow(kernel, ruleset, os.open("/", _REFERENCE), rights)
        opener = OldMounts(kernel)
        for mount in plan.mounts:
            if mount.kind == WRITE or (mount.kind == READ and not within_root):
                opened = opener.open_source(mount.path)
                if not within_root:
                    check_identity(mount.identity, opened)
                _allow(kernel, ruleset, opened, rights if mount.kind == WRITE else READING)
    except OSError:
        os.close(ruleset)
        raise
    restrict(kernel, ruleset)


def _scopes(plan: SandboxPlan) -> int:
    # Where the network is the host's, its abstract sockets are part of it.
    return _SCOPE_SIGNALS | (0 if plan.network == NETWORK_HOST else _SCOPE_ABSTRACT_SOCKETS)


def make_rules(kernel: Kernel, version: int, rights: int, plan: SandboxPlan) -> int:
    """Return a new ruleset (a descriptor) that handles file rights, and the plan's scopes if the kernel can.

    Raises OSError.
    """
    scopes = _scopes(plan) if version >= SCOPED_ABI else 0
    attributes = _RULESET.pack(rights, 0, scopes)
    # Older kernels know a shorter structure; what is left off counts as zero.
    size = 24 if version >= SCOPED_ABI else 16 if version >= 4 else 8
    return kernel.call("landlock_create_ruleset", attributes[:size], size, 0)


def _allow_devices(kernel: Kernel, ruleset: int, rights: int) -> None:
    """Grant the harmless devices, and the caller's own terminals as far as it holds them open."""
    for name in _READABLE_DEVICES:
        _allow_what_is_there(kernel, ruleset, b"/dev/" + name, READING)
    for name in (b"null", b"tty"):
        _allow_what_is_there(kernel, ruleset, b"/dev/" + name, rights)
    for number in (0, 1, 2):
        if os.isatty(number):
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            granted = rights & (_IOCTL_DEVICE | _HELD[mode])
            # Not by the terminal's name, which may be another one's here: this path leads to the open file.
            opened = os.open(b"/proc/self/fd/%d" % number, os.O_PATH | os.O_CLOEXEC)
            _allow(kernel, ruleset, opened, granted)


def _allow_what_is_there(kernel: Kernel, ruleset: int, path: bytes, rights: int) -> None:
    try:
        opened = os.open(path, _REFERENCE)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(os.fstat(opened).st_mode):
        os.close(opened)  # its target is granted, or not, by its own path
        return
    _allow(kernel, ruleset, opened, rights)


def _allow(kernel: Kernel, ruleset: int, opened: int, rights: int) -> None:
    """Grant rights on what a descriptor refers to, and on all below it, as far as they apply; closes it."""
    allow(kernel, ruleset, opened, rights if stat.S_ISDIR(os.fstat(opened).st_mode) else rights & _ON_FILES)


def allow(kernel: Kernel, ruleset: int, opened: int, rights: int) -> None:
    """Grant rights on what a descriptor refers to, and on all below it; closes it.  Raises OSError."""
    try:
        kernel.call("landlock_add_rule", ruleset, _PATH_BENEATH, _RULE.pack(rights, opened), 0)
    finally:
        kernel.close(opened)


def restrict(kernel: Kernel, ruleset: int) -> None:
    """Put the calling process under a ruleset for good, and close that.  Needs no_new_privs."""
    try:
        kernel.call("landlock_restrict_self", ruleset, 0)
    finally:
        kernel.close(ruleset)
