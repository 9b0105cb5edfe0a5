"""Confined processes for callers without a zygote: the sandbox command and the file helper."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, ViewPlan


def run_confined(
    plan: ViewPlan,
    argv: Sequence[bytes],
    env: Sequence[bytes],
    cwd: bytes,
    arg0: bytes | None = None,
    extra: Sequence[Mount] = (),
) -> int:
    """Run a program inside the view of a plan, with this process's stdio, to its end.

    SIGHUP, SIGINT, SIGQUIT and SIGTERM are passed on.  Returns the program's raw wait status.  `extra` are
    mounts on top of the plan's.  Raises ViewFailed; nothing has run then.
    """
    raise NotImplementedError


def confine_self_then_call(plan: ViewPlan, function: Callable[[], int]) -> int:
    """Call a function in a forked process inside the view of a plan; return its result, an exit status.

    The function finds this process's descriptors 0, 1 and 2 and must import nothing.  A function that dies
    counts as status 1.  Raises ViewFailed; nothing was called then.
    """
    raise NotImplementedError
