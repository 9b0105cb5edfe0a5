"""Landlock for commands in a view: what mounts cannot say.

A read-only mount does not stop writing to a FIFO or a device, since nothing is written to its file system;
Landlock's right to write files does.  Two rights are handled only: that one, and renames between folders,
which every domain refuses unless it grants them.  The price is that whoever has any file right handled can
mount nothing, in a user namespace of his own neither, so a policy may be told to let sandboxes be made
inside (`ViewPlan.nesting`); it has the scopes alone then.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from execserver.sandbox import landlock, mounts
from execserver.sandbox.mounts import NewMounts
from execserver.sandbox.mounts_old import OldMounts
from execserver.sandbox.plan import ROOT_EMPTY, ROOT_READ_ONLY, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.syscalls import Kernel

_OF_THE_VIEW = (b"/dev", b"/proc")


def closes_fifos(version: int, plan: ViewPlan) -> bool:
    """Tell whether the domain of a command governs files: not where all may be written, or nesting is on."""
    return (
        version >= landlock.LEAST_ABI_IN_VIEW
        and plan.root in (ROOT_READ_ONLY, ROOT_EMPTY)
        and not plan.nesting
    )


def command_rules(kernel: Kernel, version: int, plan: ViewPlan, report: int) -> int | None:
    """Return the rules for a command of a plan, for `landlock.restrict`; None where the kernel has none.

    The caller stands in the view, still with its capabilities: the folders above a root may be closed to who
    has none.  `report` is a descriptor of a pipe.  Raises OSError.
    """
    if not closes_fifos(version, plan):
        return landlock.scope_rules(kernel, version, plan)
    rights = landlock.WRITE_FILE | landlock.REFER
    ruleset = landlock.make_rules(kernel, version, rights, plan)
    opener = NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)
    landlock.allow(kernel, ruleset, opener.open_source(b"/"), landlock.REFER)
    for path in (*_OF_THE_VIEW, *_writable(plan)):
        landlock.allow(kernel, ruleset, opener.open_source(path), landlock.WRITE_FILE)
    kernel.run(_allow_stdio, kernel.plain(), ruleset, report)
    return ruleset


def _writable(plan: ViewPlan) -> list[bytes]:
    """Return what is mounted writable, without what lies below another: rules hold for all below them."""
    found: list[bytes] = []
    for mount in plan.mounts:
        if mount.kind == WRITE and not mount.path.startswith(tuple(path + b"/" for path in found)):
            found.append(mount.path)
    return found


def _allow_stdio(kernel: Kernel, ruleset: int, report: int) -> None:
    """Grant what the caller holds open for writing: a terminal or file of outside, opened as /dev/stderr."""
    pipes = os.fstat(report).st_dev
    for number in (0, 1, 2):
        found = os.fstat(number)
        if found.st_dev == pipes or stat.S_ISSOCK(found.st_mode):
            continue  # no rule is needed, or is of any use
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            continue
        try:
            opened = os.open(b"/proc/self/fd/%d" % number, os.O_PATH | os.O_CLOEXEC)
            landlock.allow(kernel, ruleset, opened, landlock.WRITE_FILE)
        except OSError as error:
            # No /proc here, or a file system of the kernel's own, which Landlock leaves alone.
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EBADFD):
                raise
