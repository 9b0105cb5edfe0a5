"""Whether what a path leads to now is what a plan was made for."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity


def check_identity(identity: Identity | None, opened: int) -> int:
    """Return the file type of what was opened; refuse with ESTALE what the plan was not made for."""
    found = os.fstat(opened)
    kind = stat.S_IFMT(found.st_mode)
    if identity is not None and identity != (found.st_dev, found.st_ino, kind):
        raise OSError(errno.ESTALE, "it is not what it was when the policy was resolved")
    return kind
