"""The interface of all back ends: one confinement, and what a fork does to carry it out.

Each has a module of its own, a class with the same three entry points (a command, a file worker, a command
that is watched), and a line in `table`.  What they return is called in a fork, of a zygote, an exec
supervisor or a helper.
"""

from __future__ import annotations

import errno
import os

from execserver.zygote.confine.child import fork_child
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.stages import STAGE_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.sandbox.rootfs.recorded import RecordedRoot
    from execserver.zygote.confine.child import Become, Report
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.plan_cache import PlanCache
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.confine.sandboxes import Sandboxes
    from execserver.zygote.confinement import Confinement
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest

    # Forks the child that is or stands for a command; raises OSError.
    Start = Callable[[], tuple[int, Report]]


class Host:
    """What all back ends of a process that starts sandboxes share."""

    __slots__ = ("kernel", "libc", "plans")

    def __init__(self, kernel: Kernel, libc: Libc, plans: PlanCache) -> None:
        self.kernel = kernel
        self.libc = libc
        self.plans = plans


class BackEnd:
    """One confinement, decoded.  All that can be prepared is prepared before the fork that uses it.

    `flags` are the namespaces that its forks go into, `recorded` are the calls that build the sandbox root of
    a command, if `make_ready` has recorded them, `builders` is how many programs of ours are executed before
    the command.  With `has_root`, mask targets mask the missing paths of its `plan`.  With `is_quick`,
    the child is ready within a millisecond or so.
    """

    flags = 0
    builders = 0
    has_root = False
    is_quick = False
    needs_cwd = True  # the fork is made in the command's cwd, which must exist
    plan: SandboxPlan | None = None
    recorded: RecordedRoot | None = None

    def __init__(self, host: Host, confinement: Confinement) -> None:
        """Decode a confinement.  Raises SpawnFailure."""

    def route(self, routing: Routing) -> None:
        """Take on the way to the proxies of the next command, whose network has nothing else.

        Raises SpawnFailure.
        """
        raise refused("it cannot route a managed proxy")

    def make_ready(self) -> None:
        """Prepare, before the fork, what the forks of commands use."""

    def command(self, command: Command, covers: Sequence[Mount]) -> Become:
        """Return what a fork does to become the command, or to stand for it until it ends.

        `covers` are the mounts that mask missing paths.
        """
        raise NotImplementedError

    def watched(
        self, command: Command, covers: Sequence[Mount], channel: int, watch: Callable[[], None]
    ) -> Become:
        """Return the same for a command that an exec supervisor watches.

        `watch` is called in the fork before the command is executed, and finds the descriptor `channel` as
        KEPT; it may raise OSError, and nothing runs then.
        """
        raise NotImplementedError

    def worker(self, socket: int, serve: Callable[[int], None]) -> Become:
        """Return what a fork does to become a file worker of the plan.

        Confined, it calls `serve` with the number of its socket.
        """
        raise NotImplementedError

    def unwatchable(self, is_notified: bool) -> str:
        """Return why a command cannot be watched, with a listener if `is_notified`; "" when it can."""
        return ""

    def starter(
        self,
        sandboxes: Sandboxes,
        request: SpawnRequest,
        descriptors: Sequence[int],
        command: Command,
        covers: Sequence[Mount],
        group: int = -1,
    ) -> Start:
        """Return what starts a request's command for a zygote.

        `group` is the descriptor of a control group for it.
        """
        self.make_ready()
        become = self.command(command, covers)
        return lambda: fork_child(sandboxes.kernel, become, self.flags, group)


def refused(why: str) -> SpawnFailure:
    """Return the failure of a request that cannot be carried out as it stands."""
    return SpawnFailure(STAGE_ROOT, errno.EINVAL, details=[os.fsencode(why)])
