"""Landlock for commands in a view: what mounts cannot say.

A read-only mount does not stop writing to a FIFO or a device, since nothing is written to its file system;
Landlock's right to write files does.  Two rights are handled only: that one, and renames between folders,
which every domain refuses unless it grants them.  The price is that whoever has any file right handled can
mount nothing, in a user namespace of his own neither, so a policy may be told to let sandboxes be made
inside (`ViewPlan.nesting`); it has the scopes alone then.

Bubblewrap mounts, too, so what it starts takes the rules on behind it: `rules_to_inherit`, and `stage`.
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
    from collections.abc import Callable

    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.syscalls import Kernel

_GOVERNED = landlock.WRITE_FILE | landlock.REFER
_OF_THE_VIEW = (b"/dev", b"/proc")
# What a view grants of what it is made of; the rest are objects of the host.
RULES_OF_THE_VIEW = ((landlock.REFER, b"/"), *((landlock.WRITE_FILE, path) for path in _OF_THE_VIEW))


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
    opener = NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)
    ruleset = landlock.make_rules(kernel, version, _GOVERNED, plan)
    for rights, path in RULES_OF_THE_VIEW:
        landlock.allow(kernel, ruleset, opener.open_source(path), rights)
    for mount in _writable(plan):
        landlock.allow(kernel, ruleset, opener.open_source(mount.path), landlock.WRITE_FILE)
    kernel.run(_allow_stdio, kernel.plain(), ruleset, report)
    return ruleset


def rules_to_inherit(
    kernel: Kernel, version: int, plan: ViewPlan, report: int, open_source: Callable[[Mount], int]
) -> int:
    """Return the rules for a command in a view that is yet to be made, but for RULES_OF_THE_VIEW.

    The caller stands outside, with the command's stdio; `open_source` returns a descriptor of what a mount
    binds, and `report` is one of a pipe.  The returned descriptor is inheritable.  Raises OSError.
    """
    ruleset = landlock.make_rules(kernel, version, _GOVERNED, plan)
    for mount in _writable(plan):
        landlock.allow(kernel, ruleset, open_source(mount), landlock.WRITE_FILE)
    _allow_stdio(kernel, ruleset, report)
    os.set_inheritable(ruleset, True)
    return ruleset


def _writable(plan: ViewPlan) -> list[Mount]:
    """Return what is mounted writable, without what lies below another: rules hold for all below them."""
    found: list[Mount] = []
    for mount in plan.mounts:
        if mount.kind == WRITE and not mount.path.startswith(tuple(one.path + b"/" for one in found)):
            found.append(mount)
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
