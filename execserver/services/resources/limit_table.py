"""The limits of the command line, and what holds each limit on this machine.

Read before anything of the server is imported, so this module imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from execserver.core.resource_limits import (
    CPU_PERCENT,
    CPU_TIME,
    FILE_BYTES,
    MEMORY,
    OF_GROUPS,
    OPEN_FILES,
    PROCESSES,
    WALL,
    Limits,
)
from execserver.resources import control_group
from execserver.resources.hierarchy import Blocked, Hierarchy, find_place
from execserver.settings import Settings

CONTROLLER_OF: Final = {
    MEMORY: control_group.MEMORY,
    PROCESSES: control_group.PIDS,
    CPU_PERCENT: control_group.CPU,
}

_WORD_OF: Final = {MEMORY: "memory", PROCESSES: "processes", CPU_PERCENT: "cpu"}  # on the command line


def process_caps(settings: Settings) -> Limits:
    """Return what --limit-process says."""
    values = {
        MEMORY: settings.limit_process_memory_bytes,
        PROCESSES: settings.limit_process_processes,
        CPU_PERCENT: settings.limit_process_cpu_percent,
        WALL: settings.limit_process_wall_ms,
        CPU_TIME: settings.limit_process_cpu_ms,
        FILE_BYTES: settings.limit_process_file_bytes,
        OPEN_FILES: settings.limit_process_open_files,
    }
    return _limits(values, best=bool(settings.limit_process_best))


def session_caps(settings: Settings) -> Limits:
    """Return what --limit-session says."""
    return _limits(
        {
            MEMORY: settings.limit_session_memory_bytes,
            PROCESSES: settings.limit_session_processes,
            CPU_PERCENT: settings.limit_session_cpu_percent,
        }
    )


def open_hierarchy() -> Hierarchy | Blocked:
    """Make the control groups of this server, or return why there can be none."""
    try:
        return Hierarchy(find_place())
    except Blocked as blocked:
        return blocked


def groups_of_command_line(settings: Settings) -> Hierarchy | None:
    """Make the control groups that limits of the command line need, None where there can be none.

    Raises Blocked for a limit that nothing holds here.
    """
    hierarchy = open_hierarchy()
    for option, limits, otherwise in (
        ("--limit-process", process_caps(settings), "; or add --limit-process enforce=best"),
        ("--limit-session", session_caps(settings), ""),
    ):
        for name in limits.values:
            why = None if limits.best else lacking(name, hierarchy)
            if why is not None:
                if isinstance(hierarchy, Hierarchy):
                    hierarchy.close()
                said = f"{option} {_WORD_OF[name]} cannot be enforced here: {why.blocker}"
                raise Blocked(said, f"{why.cure}{otherwise}")
    return None if isinstance(hierarchy, Blocked) else hierarchy


def lacking(name: str, hierarchy: Hierarchy | Blocked) -> Blocked | None:
    """Return why the kernel does not hold a limit here; None if it does."""
    if name not in OF_GROUPS:
        return None
    return hierarchy if isinstance(hierarchy, Blocked) else hierarchy.lacking(CONTROLLER_OF[name])


def _limits(values: Mapping[str, int], *, best: bool = False) -> Limits:
    return Limits({name: value for name, value in values.items() if value}, best)
