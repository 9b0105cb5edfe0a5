"""Sandboxes by Landlock and a seccomp filter alone, for plans that these express exactly."""

from __future__ import annotations

from execserver.sandbox.backends import landlock_only
from execserver.zygote.confine.unnamespaced import Unnamespaced, run_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.plan import SandboxPlan
    from execserver.zygote.confine.back_end import Host
    from execserver.zygote.confine.child import Become
    from execserver.zygote.confinement import Confinement


class Landlock(Unnamespaced):
    """Commands, file workers and functions that may use the files of one plan."""

    plan: SandboxPlan

    def __init__(self, host: Host, confinement: Confinement) -> None:
        super().__init__(host, confinement)
        self.plan = host.plans.plan(confinement.plan)

    def restrict(self) -> None:
        """Allow this process the files of the plan and no others."""
        landlock_only.confine_self(self._host.kernel, self.plan)

    def function(self, function: Callable[[], int]) -> Become:
        """Return what a fork does to call a function, whose result is its exit status."""
        kernel, restrict = self._host.kernel, self.restrict
        return lambda report, _: run_function(kernel, restrict, function, report)
