"""Plans of recent requests, each with its way into the view: neither is made again for every start."""

from __future__ import annotations

import time

from execserver.sandbox.namespaces import Identity
from execserver.sandbox.view import settings_of_host
from execserver.zygote.init import prepare
from execserver.zygote.requested import decoded_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.prepared import PreparedView
    from execserver.sandbox.syscalls import Kernel

_KEPT = 16  # as many as there are file workers; a view takes about 100 KiB
_SETTINGS_S = 10  # who starts now is protected at least as who started these seconds ago
_MOST_BYTES = 64 * 1024  # a larger plan is decoded anew each time


class _Known:
    __slots__ = ("plan", "settings", "view")

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        self.view: PreparedView | None = None
        self.settings: list[bytes] | bool | None = False


class KnownPlans:
    """What is known by the bytes of a plan; the one used longest ago is forgotten first.

    The views are for processes that have inherited the filter if `filtered`, and with `keeping` for those
    that find a descriptor as KEPT.
    """

    def __init__(self, kernel: Kernel, filtered: bool = False, keeping: bool = False) -> None:
        self._kernel = kernel
        self._filtered = filtered
        self._keeping = keeping
        self._identity = Identity()
        self._known: dict[bytes, _Known] = {}  # in the order of their last use
        self._settings: list[bytes] | None = None
        self._looked = 0.0

    def plan(self, record: bytes) -> ViewPlan:
        """Return a request's plan, or raise SpawnFailure."""
        return self._take(record).plan

    def view(self, record: bytes) -> PreparedView | None:
        """Return the way into the view of a request's plan, where there is one, or raise SpawnFailure."""
        known = self._take(record)
        if len(record) > _MOST_BYTES:
            return None
        now = time.monotonic()
        if not self._looked or now - self._looked > _SETTINGS_S:
            self._settings, self._looked = settings_of_host(), now
        if known.settings != self._settings:
            known.settings = self._settings
            known.view = prepare(
                *(self._kernel, known.plan, self._identity, self._filtered, self._settings, self._keeping)
            )
        return known.view

    def _take(self, record: bytes) -> _Known:
        known = self._known.pop(record, None) or _Known(decoded_plan(record))
        if len(record) <= _MOST_BYTES:
            self._known[record] = known
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return known
