"""Which limits of processes the kernel holds for this server; looks, and changes nothing."""

from __future__ import annotations

from execserver.resources.control_group import CPU, MEMORY, PIDS
from execserver.resources.hierarchy import Blocked, Place, find_place
from execserver.sandbox.backends.report import Check

GROUPS = "control-groups"
LIMITS = {MEMORY: "limit-memory", PIDS: "limit-processes", CPU: "limit-cpu"}


def check_limits() -> tuple[Check, ...]:
    """Return whether this process may make control groups, and which limits these hold."""
    try:
        place = find_place()
    except Blocked as blocked:
        why = (blocked.blocker, blocked.cure)
        return tuple(Check(name, False, "", *why) for name in (GROUPS, *LIMITS.values()))
    groups = Check(GROUPS, True, f"below {place.path}: CPU time, and the end of all at once")
    return groups, *(_check(place, controller) for controller in LIMITS)


def _check(place: Place, controller: str) -> Check:
    if controller in place.controllers:
        return Check(LIMITS[controller], True, f"by the {controller} controller")
    lacking = place.lacking(controller)
    return Check(LIMITS[controller], False, "", lacking.blocker, lacking.cure)
