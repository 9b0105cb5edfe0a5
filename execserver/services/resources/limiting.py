"""The limits of a server, of its sessions and of their processes, and the control groups that hold them.

One `Limiter` for the server, one `SessionLimits` for each session with a limited process, one `Account` for
each such process.  Nothing is made before the first limit is asked for, by a client or on the command line.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import gevent

from execserver.core.resource_limits import (
    CPU_PERCENT,
    CPU_TIME,
    FILE_BYTES,
    MEMORY,
    OF_GROUPS,
    OF_SESSIONS,
    OPEN_FILES,
    PROCESSES,
    WALL,
    LimitOutOfBounds,
    Limits,
    limited,
)
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, os_error_text
from execserver.protocol.resource_limits import LimitEnforcement, ResourceLimits
from execserver.resources import control_group
from execserver.resources.control_group import ControlGroup
from execserver.resources.hierarchy import Blocked, Hierarchy
from execserver.resources.rlimits import ChildLimits
from execserver.services.launch.child import Child
from execserver.services.resources.account import Account
from execserver.services.resources.limit_table import (
    CONTROLLER_OF,
    lacking,
    open_hierarchy,
    process_caps,
    session_caps,
)
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.handover.records import PackedAccount, PackedLimits

_log = logging.getLogger(__name__)

_END_S: Final = 2.0  # for the kernel to end what was killed, when a session ends
_STEP_S: Final = 0.005
_CPU_BEHIND_S: Final = 2  # the rlimit, which knows no other processes, comes after the look at the group
_BY_KERNEL, _SAMPLED, _BY_SERVER, _NOBODY = "kernel", "sampled", "server", "none"


class Limiter:
    """The limits of all sessions; owns the control groups, once there are some."""

    def __init__(self, settings: Settings, hierarchy: Hierarchy | None = None) -> None:
        self.of_processes = process_caps(settings)
        self.of_sessions = session_caps(settings)
        self._hierarchy: Hierarchy | Blocked | None = hierarchy
        self._sessions = 0

    def hierarchy(self) -> Hierarchy | Blocked:
        """Return the groups, or why there are none; looks once."""
        if self._hierarchy is None:
            self._hierarchy = open_hierarchy()
        return self._hierarchy

    @property
    def sessions(self) -> int:
        """How many sessions have had a group."""
        return self._sessions

    def count_from(self, sessions: int) -> None:
        """Go on counting behind another server's sessions."""
        self._sessions = sessions

    def next_session(self) -> int:
        """Return a number that no session has had."""
        self._sessions += 1
        return self._sessions

    def close(self) -> None:
        """Remove the groups; all processes have ended."""
        if isinstance(self._hierarchy, Hierarchy):
            self._hierarchy.close()


class SessionLimits:
    """The processes of one session that have limits, in a group of their own where that is possible."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._group: ControlGroup | None = None
        self._started = 0
        self._accounts: set[Account] = set()

    def account(self, asked: ResourceLimits | None) -> Account:
        """Return the account of a process that is to be started; `Account.discard` if it is not.

        Raises InvalidParams for a limit out of bounds, InvalidRequest for one that nothing holds here.
        """
        self._sweep()
        limits = self._limits(asked or ResourceLimits())
        hierarchy = self._limiter.hierarchy() if limits.values or self._limiter.of_sessions.values else None
        enforced = {name: _enforced(name, limits, hierarchy) for name in limits.values}
        group = self._process_group(hierarchy, limits) if isinstance(hierarchy, Hierarchy) else None
        account = Account(
            limits,
            self._limiter.of_sessions,
            group,
            self._ooms_above(hierarchy) if isinstance(hierarchy, Hierarchy) else None,
            _child_limits(limits, group is not None),
            frozenset(name for name, by in enforced.items() if by == _SAMPLED),
            self._accounts.discard,
        )
        account.enforced = None if asked is None else enforced
        self._accounts.add(account)
        return account

    def pack(self) -> PackedLimits:
        """Return what `unpack` takes."""
        from execserver.handover.records import PackedLimits

        path = None if self._group is None else self._group.path
        return PackedLimits(path, self._started, [account.pack() for account in self._accounts])

    def unpack(self, packed: PackedLimits, find: Callable[[int, int], Child | None]) -> list[Account]:
        """Take over a session's group and accounts; return these in their order.

        `find` returns the child with these numbers, None for one that belongs to no process.
        """
        hierarchy = self._limiter.hierarchy() if packed.group is not None else None
        self._started = packed.started
        self._group = _still_there(packed.group)
        return [self._unpacked(each, hierarchy, find) for each in packed.accounts]

    def _unpacked(
        self,
        packed: PackedAccount,
        hierarchy: Hierarchy | Blocked | None,
        find: Callable[[int, int], Child | None],
    ) -> Account:
        account = Account(
            Limits(packed.limits, packed.is_best),
            self._limiter.of_sessions,
            _still_there(packed.group),
            self._ooms_above(hierarchy) if isinstance(hierarchy, Hierarchy) else None,
            ChildLimits(),
            frozenset(packed.sampled),
            self._accounts.discard,
        )
        self._accounts.add(account)
        account.go_on(packed, find(packed.zygote, packed.child_id))
        return account

    def _sweep(self) -> None:
        """Remove the groups of processes that have left something behind, and that is gone by now."""
        for account in list(self._accounts):
            account.sweep()

    def kill(self) -> None:
        """Kill all of them at once, with what they have started."""
        if self._group is not None:
            self._group.kill()

    def end(self) -> None:
        """Kill all that is left of them, and remove the group; waits for the kernel."""
        for account in list(self._accounts):
            account.end()
        group, self._group = self._group, None
        if group is None:
            return
        for _ in range(int(_END_S / _STEP_S)):
            if not group.is_populated:
                break
            gevent.sleep(_STEP_S)
        self._sweep()
        if not group.remove():
            _log.warning("the control group %s is still in use", group.path)

    def _limits(self, wanted: ResourceLimits) -> Limits:
        asked = {
            MEMORY: wanted.memory_bytes,
            PROCESSES: wanted.processes,
            CPU_PERCENT: wanted.cpu_percent,
            WALL: wanted.wall_ms,
            CPU_TIME: wanted.cpu_ms,
            FILE_BYTES: wanted.file_bytes,
            OPEN_FILES: wanted.open_files,
        }
        try:
            return limited(asked, wanted.enforce is LimitEnforcement.BEST, self._limiter.of_processes)
        except LimitOutOfBounds as error:
            raise InvalidParams(str(error)) from None

    def _process_group(self, hierarchy: Hierarchy, limits: Limits) -> ControlGroup:
        """Make the group of a process with the limits that groups hold here.  Raises InternalError."""
        try:
            if self._group is None:
                self._group = self._session_group(hierarchy)
            self._started += 1
            group = hierarchy.process_group(self._group, self._started)
            try:
                if control_group.MEMORY in hierarchy.controllers:
                    group.end_as_one()
                group.limit(*_held(limits, hierarchy))
            except OSError:
                group.remove()
                raise
            return group
        except OSError as error:
            raise InternalError(f"no control group can be made: {os_error_text(error.errno or 0)}") from None

    def _session_group(self, hierarchy: Hierarchy) -> ControlGroup:
        group = hierarchy.session_group(self._limiter.next_session())
        try:
            group.limit(*_held(self._limiter.of_sessions, hierarchy))
        except OSError:
            group.remove()
            raise
        return group

    def _ooms_above(self, hierarchy: Hierarchy) -> Callable[[], tuple[int, int]] | None:
        """Return what counts how often the groups above a process ran out, if memory is counted at all."""
        group = self._group
        if group is None or control_group.MEMORY not in hierarchy.controllers:
            return None
        return lambda: (group.ooms, hierarchy.ooms)


def _still_there(path: str | None) -> ControlGroup | None:
    """Open a group that was handed over; None for one that somebody has removed meanwhile."""
    try:
        return None if path is None else ControlGroup.at(path)
    except OSError as error:
        # There is no server any more to go back to: this one must not end for it, and all processes with it.
        _log.warning("the control group %s is gone: %s", path, error.strerror)
        return None


def _enforced(name: str, limits: Limits, hierarchy: Hierarchy | Blocked | None) -> str:
    """Return what holds a limit.  Raises InvalidRequest if nothing does, and that was not accepted."""
    if name == WALL:
        return _BY_SERVER
    if name not in OF_GROUPS or hierarchy is None:
        return _BY_KERNEL
    why = lacking(name, hierarchy)
    if why is None:
        return _BY_KERNEL
    if not limits.best:
        raise InvalidRequest(
            f"limits.{name} cannot be enforced here: {why.blocker} (cure: {why.cure}; "
            'or take what there is, with "enforce": "best")'
        )
    return _NOBODY if name == CPU_PERCENT else _SAMPLED


def _held(limits: Limits, hierarchy: Hierarchy) -> tuple[int, int, int]:
    """Return memory, processes and CPU share as far as groups hold them here, 0 for none."""
    memory, processes, percent = (
        limits.get(name) if CONTROLLER_OF[name] in hierarchy.controllers else 0 for name in OF_SESSIONS
    )
    return memory, processes, percent


def _child_limits(limits: Limits, grouped: bool) -> ChildLimits:
    return ChildLimits(
        (math.ceil(limits.get(CPU_TIME) / 1000) + grouped * _CPU_BEHIND_S) if limits.get(CPU_TIME) else -1,
        limits.get(FILE_BYTES) or -1,
        limits.get(OPEN_FILES) or -1,
        grouped,
    )
