"""Checks that an opened file is still the object that a plan was made for."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity


class NotAsPlanned(OSError):
    """A path leads to another object than the plan was made for: the plan is stale, and nothing may run.

    An OSError, since whoever carries out a plan reports any call that fails in the same way.  The server is
    another process: it gets the text alone, and finds out that a plan is stale by making it anew
    (`services/confinement/current_plan`).
    """


def check_identity(identity: Identity | None, opened: int) -> int:
    """Return the file type of what was opened.  Raises NotAsPlanned for what the plan was not made for."""
    found = os.fstat(opened)
    kind = stat.S_IFMT(found.st_mode)
    if identity is not None and identity != (found.st_dev, found.st_ino, kind):
        raise NotAsPlanned(errno.ESTALE, "it is not what it was when the policy was resolved")
    return kind
