"""The host as it would be without mask targets, so that running commands make no difference to a plan.

Otherwise each start and end of a command would change the plans of its workspace: file workers would be
replaced, and starts planned again.  Building a sandbox root from such a plan finds the mask target and uses
it, too.
"""

from __future__ import annotations

import os
import time

from execserver.sandbox.masks.files import identity_of, may_be_own_mask_target
from execserver.sandbox.masks.records import GOING, MADE, find_record, record_places
from execserver.sandbox.policy.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity

_KEPT_S = 1.0  # then even a record that still exists is looked for anew: its owner may have died
_MOST_KEPT = 256


class KnownMaskTargets:
    """Objects that were found to be mask targets, with their records; all hosts of one server share it."""

    def __init__(self, runtime_dir: bytes | None = None) -> None:
        self._places = record_places(runtime_dir)
        self._known: dict[tuple[int, int], tuple[bytes, float]] = {}

    def has(self, identity: Identity) -> bool:
        """Tell whether a living owner of this user has made an object."""
        key, now = identity[:2], time.monotonic()
        record, until = self._known.get(key, (b"", 0.0))
        # This is asked before every file call, so a known record costs one system call instead of twenty.
        if now < until and os.access(record, os.F_OK):
            return True
        looked_for = find_record(self._places, identity, (MADE, GOING))
        if looked_for is None:
            self._known.pop(key, None)
            return False
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[key] = (looked_for, now + _KEPT_S)
        return True


class MaskTargetHost(Host):
    """This machine without the mask targets in use: objects that look so, and have their maker's record."""

    def __init__(self, targets: KnownMaskTargets, tmpdir: bytes | None = None) -> None:
        super().__init__(tmpdir)
        self._targets = targets

    def hides(self, found: os.stat_result) -> bool:
        """Tell whether an object is a mask target that a living owner of this user has made."""
        if found.st_mode & 0o222 or not may_be_own_mask_target(found):
            return False  # most objects can be written by somebody: no system call for these
        return self._targets.has(identity_of(found))
