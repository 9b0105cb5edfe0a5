"""From a plan to a mount namespace that shows exactly what the plan says, all by descriptor."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.syscalls import Kernel


class ViewFailed(Exception):
    """The view could not be made and nothing may run; the message says why."""


def enter_view(kernel: Kernel, plan: ViewPlan, extra: Sequence[Mount] = (), console: bytes = b"") -> None:
    """Make the view in the caller's own, fresh namespaces and move into it.

    `extra` are mounts on top of the plan's (placeholders of missing names); `console` is the path of the
    terminal that becomes /dev/console.  Raises ViewFailed.
    """
    raise NotImplementedError
