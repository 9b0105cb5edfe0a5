"""The plan cache: plans of recent requests, each with the recorded calls that build its sandbox root."""

from __future__ import annotations

import time

from execserver.sandbox.kernel.namespaces import Identity
from execserver.sandbox.rootfs.builder import settings_of_host
from execserver.zygote.confine.request import decoded_plan
from execserver.zygote.confine.sandbox_init import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import SandboxPlan
    from execserver.sandbox.rootfs.recorded import RecordedRoot

_KEPT = 16  # as many as there are file workers; a recorded sandbox root takes about 100 KiB
# A start may use a list of what /proc held this long ago.  It is then protected as well as a command that
# started at that time.
_SETTINGS_S = 10
_MOST_BYTES = 64 * 1024  # a larger plan is decoded anew each time


class _Known:
    __slots__ = ("plan", "recorded", "settings")

    def __init__(self, plan: SandboxPlan) -> None:
        self.plan = plan
        self.recorded: RecordedRoot | None = None
        self.settings: list[bytes] | bool | None = False


class PlanCache:
    """Plans by their bytes; the one used longest ago is forgotten first.

    The recorded calls are for processes that have inherited the filter if `filtered`, and with `keeping` for
    those that find a descriptor as KEPT.
    """

    def __init__(self, kernel: Kernel, filtered: bool = False, keeping: bool = False) -> None:
        self._kernel = kernel
        self._filtered = filtered
        self._keeping = keeping
        self._identity = Identity()
        self._known: dict[bytes, _Known] = {}  # in the order of their last use
        self._settings: list[bytes] | None = None
        self._looked = 0.0

    def plan(self, record: bytes) -> SandboxPlan:
        """Return the decoded plan of a request, or raise SpawnFailure."""
        return self._take(record).plan

    def recorded(self, record: bytes) -> RecordedRoot | None:
        """Return the recorded sandbox root of a request's plan, None where there is none.

        Raises SpawnFailure.
        """
        known = self._take(record)
        if len(record) > _MOST_BYTES:
            return None
        now = time.monotonic()
        if not self._looked or now - self._looked > _SETTINGS_S:
            self._settings, self._looked = settings_of_host(), now
        if known.settings != self._settings:
            known.settings = self._settings
            known.recorded = prepare(
                *(self._kernel, known.plan, self._identity, self._filtered, self._settings, self._keeping)
            )
        return known.recorded

    def all_recorded(self) -> list[RecordedRoot]:
        """Return all recorded sandbox roots."""
        return [known.recorded for known in self._known.values() if known.recorded is not None]

    def _take(self, record: bytes) -> _Known:
        known = self._known.pop(record, None) or _Known(decoded_plan(record))
        if len(record) <= _MOST_BYTES:
            self._known[record] = known
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return known
