"""Landlock rules for commands in a sandbox root: what mounts cannot express.

A read-only mount does not stop a write to a FIFO or a device, since nothing is written to its file system.
Landlock's right to write files does.  Only two rights are handled: that one, and renames between
directories, which every Landlock domain refuses unless a rule grants them.

The price: a process with any file right handled can mount nothing, not even in a user namespace of its own.
So a plan can allow nested sandboxes instead (`SandboxPlan.nesting`); then it has Landlock's scopes alone.

Bubblewrap mounts, too, so its command takes on the rules behind it: `rules_to_inherit`, `backends.stage`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from execserver.sandbox.kernel import landlock, mounts
from execserver.sandbox.kernel.mounts import NewMounts
from execserver.sandbox.kernel.mounts_old import OldMounts
from execserver.sandbox.plan import ROOT_EMPTY, ROOT_READ_ONLY, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan

_GOVERNED = landlock.WRITE_FILE | landlock.REFER
_OF_THE_ROOT = (b"/dev", b"/proc")
# The rules about the sandbox root's own parts.  All other rules are about objects of the host.
RULES_OF_THE_ROOT = ((landlock.REFER, b"/"), *((landlock.WRITE_FILE, path) for path in _OF_THE_ROOT))


def closes_fifos(version: int, plan: SandboxPlan) -> bool:
    """Tell whether a command's Landlock domain handles file rights.

    It does not where everything may be written, where nested sandboxes are allowed, or before Landlock ABI
    `LEAST_ABI_IN_ROOT`; `version` is the kernel's ABI.
    """
    return (
        # ABI 1 has no right for renames between directories: it would refuse them all.
        version >= landlock.LEAST_ABI_IN_ROOT
        and plan.root in (ROOT_READ_ONLY, ROOT_EMPTY)
        and not plan.nesting
    )


def command_rules(kernel: Kernel, version: int, plan: SandboxPlan, report: int) -> int | None:
    """Return the ruleset for a command of a plan, for `landlock.restrict`; None where the kernel has none.

    The caller is in the sandbox root and still has its capabilities: without them it might not reach a
    writable root, since the directories above one may be closed to this user.  `report` is a descriptor of a
    pipe.  Raises OSError.
    """
    if not closes_fifos(version, plan):
        return landlock.scope_rules(kernel, version, plan)
    # Both open without following symlinks: a rule must concern the very directory of the plan.
    opener = NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)
    ruleset = landlock.make_rules(kernel, version, _GOVERNED, plan)
    for rights, path in RULES_OF_THE_ROOT:
        landlock.allow(kernel, ruleset, opener.open_source(path), rights)
    for mount in _writable(plan):
        landlock.allow(kernel, ruleset, opener.open_source(mount.path), landlock.WRITE_FILE)
    # Each start has other stdio: when this is recorded, a function is what the list holds.
    kernel.run(allow_stdio, kernel.plain(), ruleset, report)
    return ruleset


def rules_to_inherit(
    kernel: Kernel, version: int, plan: SandboxPlan, report: int, open_source: Callable[[Mount], int]
) -> int:
    """Return the ruleset for a command whose sandbox root is yet to be made, without RULES_OF_THE_ROOT.

    The caller is outside the sandbox and has the command's stdio.  `open_source` returns a descriptor of what
    a mount binds; `report` is a descriptor of a pipe.  The returned descriptor is inheritable: the Landlock
    stage adds the missing rules.  Raises OSError.
    """
    ruleset = landlock.make_rules(kernel, version, _GOVERNED, plan)
    for mount in _writable(plan):
        landlock.allow(kernel, ruleset, open_source(mount), landlock.WRITE_FILE)
    allow_stdio(kernel, ruleset, report)
    os.set_inheritable(ruleset, True)
    return ruleset


def _writable(plan: SandboxPlan) -> list[Mount]:
    """Return the writable mounts, without those below another: a rule holds for everything below it."""
    found: list[Mount] = []
    for mount in plan.mounts:
        if mount.kind == WRITE and not mount.path.startswith(tuple(one.path + b"/" for one in found)):
            found.append(mount)
    return found


def allow_stdio(kernel: Kernel, ruleset: int, report: int) -> None:
    """Grant writing to terminals and files that the caller holds open for writing as its stdio.

    `report` is a descriptor of a pipe.  Raises OSError.

    Without these rules `echo > /dev/stderr` fails on a terminal: it opens the terminal once more.
    """
    pipes = os.fstat(report).st_dev  # the kernel's file system that all pipes are on
    for number in (0, 1, 2):
        found = os.fstat(number)
        if found.st_dev == pipes or stat.S_ISSOCK(found.st_mode):
            continue  # a pipe needs no rule, and a socket cannot be opened by a path
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            continue  # a rule would let the command open it for writing
        try:
            opened = os.open(b"/proc/self/fd/%d" % number, os.O_PATH | os.O_CLOEXEC)
            landlock.allow(kernel, ruleset, opened, landlock.WRITE_FILE)
        except OSError as error:
            # No /proc here, or a file system of the kernel's own, which Landlock leaves alone.
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EBADFD):
                raise
