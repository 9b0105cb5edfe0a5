"""Plans of recent requests, each with its way into the view: neither is made again for every start."""

from __future__ import annotations

from collections import OrderedDict

from execserver.sandbox.namespaces import Identity
from execserver.zygote.init import prepare
from execserver.zygote.requested import decoded_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.prepared import PreparedView
    from execserver.sandbox.syscalls import Kernel

_KEPT = 16  # as many as there are file workers; a view takes about 100 KiB
_MOST_BYTES = 64 * 1024  # a larger plan is decoded anew each time


class KnownPlans:
    """What is known by the bytes of a plan; the one used longest ago is forgotten first."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._identity = Identity()
        self._known: OrderedDict[bytes, tuple[ViewPlan, PreparedView | None]] = OrderedDict()

    def take(self, record: bytes) -> tuple[ViewPlan, PreparedView | None]:
        """Return a request's plan and the way into its view, if there is one; or raise SpawnFailure."""
        known = self._known.get(record)
        if known is None:
            plan = decoded_plan(record)
            if len(record) > _MOST_BYTES:
                return plan, None
            known = self._known[record] = plan, prepare(self._kernel, plan, self._identity)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(record)
        return known
