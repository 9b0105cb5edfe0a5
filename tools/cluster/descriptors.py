"""How many files a process may open, and how far children of this one may go."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from tools.problems import Problem


def own_limit_up_to_hard() -> None:
    """Let this process open as many as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def allowed_for_children(count: int) -> Iterator[None]:
    """Let programs that are started meanwhile raise their limit to so many.  Raises Problem."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= count:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, count))
    except (OSError, ValueError):
        problem = (
            f"a process here may open {hard} files, {count} are needed, and this user may not raise that"
        )
        raise Problem(problem, f"raise the hard limit: prlimit --nofile={count} as root") from None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
