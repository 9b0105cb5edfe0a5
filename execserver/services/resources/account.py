"""The account of one process with limits: who holds them, what it used, and why it ended.

A control group holds all that the process starts, to whichever session it goes and whoever its parent is.
Without one, a look four times a second finds what it can (`resources/process_tree`).  The time of the process
counts for all of it: what it leaves behind when it ends is still watched, and ends with its session.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import gevent

from execserver.core.process_end import Evidence, Measured, MemoryEvents, why
from execserver.core.resource_limits import CPU_TIME, MEMORY, PROCESSES, WALL, Limits
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage
from execserver.resources.control_group import ControlGroup
from execserver.resources.process_tree import ProcessTree, Seen, members_of, memory_of
from execserver.resources.rlimits import ChildLimits
from execserver.services.launch.child import Child, usage_of
from execserver.services.launch.start_request import StartLimits

if TYPE_CHECKING:
    from execserver.handover.records import PackedAccount

_NOTHING: Final = ChildLimits()

_log = logging.getLogger(__name__)

SAMPLE_S: Final = 0.25
_EMPTY_S: Final = 0.2  # for the rest of a killed group to end, so that its counters are final
_EMPTY_STEP_S: Final = 0.001


class Account:
    """One process and all that it starts.  `enforced` says what holds each limit; None if nobody asked."""

    def __init__(
        self,
        limits: Limits,
        session_limits: Limits,
        group: ControlGroup | None,
        ooms_above: Callable[[], tuple[int, int]] | None,
        child_limits: ChildLimits,
        sampled: frozenset[str],
        on_over: Callable[[Account], None],
    ) -> None:
        """`ooms_above` counts how often the session, and what the server runs in, were out of memory.

        It is None where no group counts memory.  `on_over` is called once nothing of the process is left.
        """
        self.limits = limits
        self.group = group
        self.child_limits = child_limits
        self.enforced: dict[str, str] | None = None
        self._session_limits = session_limits
        self._ooms_above = ooms_above
        self._ooms_before = (0, 0) if ooms_above is None else ooms_above()
        self._sampled = sampled
        self._on_over = on_over
        self._child: Child | None = None
        self._tree: ProcessTree | None = None
        self._watched: Measured | None = None
        self._peak = 0
        self._watch: gevent.Greenlet[[], None] | None = None
        self._exited = False
        self._deadline = math.inf

    @property
    def is_asked(self) -> bool:
        """Whether the client is told how the process ends."""
        return self.enforced is not None

    @property
    def start_limits(self) -> StartLimits | None:
        """What the start of the process needs; None if there is nothing to take on."""
        if self.group is None and self.child_limits == _NOTHING:
            return None
        return StartLimits(self.child_limits, -1 if self.group is None else self.group.fd)

    def started(self, child: Child) -> None:
        """Begin to watch what the kernel does not."""
        self._child = child
        if self.group is None and self.limits.values:
            self._tree = ProcessTree(child.pid)
        if self._has_to_look:
            self._deadline = time.monotonic() + (self.limits.get(WALL) or math.inf) / 1000
            self._watch = gevent.spawn(self._run)

    def pack(self) -> PackedAccount:
        """Return what `go_on` takes, on an account that was made with the same limits."""
        from execserver.handover.records import PackedAccount

        child = self._child
        return PackedAccount(
            zygote=0 if child is None else child.zygote,
            child_id=0 if child is None else child.child_id,
            pid=0 if child is None else child.pid,
            limits=dict(self.limits.values),
            is_best=self.limits.best,
            group=None if self.group is None else self.group.path,
            enforced=self.enforced,
            sampled=sorted(self._sampled),
            deadline=self._deadline,
            watched=None if (seen := self._watched) is None else (seen.limit, seen.value, seen.processes),
            peak=self._peak,
            ooms_before=self._ooms_before,
            known={} if self._tree is None else self._tree.known,
            has_exited=self._exited,
        )

    def go_on(self, packed: PackedAccount, child: Child | None) -> None:
        """Watch a process that another server has started; None for one that is forgotten, or is nobody's."""
        self._child = child
        self.enforced, self._peak, self._exited = packed.enforced, packed.peak, packed.has_exited
        self._ooms_before, self._deadline = packed.ooms_before, packed.deadline
        if packed.watched is not None:
            self._watched = Measured(*packed.watched)
        if self.group is None and self.limits.values:
            self._tree = ProcessTree(packed.pid, packed.known)
        if child is None and not self._exited:
            self._exited = True
            self.kill()
        if self._watched is None and self._has_to_look:
            self._watch = gevent.spawn(self._run)

    @property
    def _has_to_look(self) -> bool:
        return bool(self._sampled or self.limits.get(WALL) or (self.group and self.limits.get(CPU_TIME)))

    def discard(self) -> None:
        """Remove what was made for a process that was not started."""
        self._over()

    def kill(self) -> bool:
        """Kill the process and all it has started, wherever that went; return False if there is no group.

        Without one, the process group is still to be killed.
        """
        if self.group is not None:
            self.group.kill()
            return True
        if self._tree is not None:
            self._tree.kill()
        return False

    def wait_until_empty(self) -> None:
        """Wait a moment for all of a killed group to end."""
        end = time.monotonic() + _EMPTY_S
        while self.group is not None and self.group.is_populated and time.monotonic() < end:
            gevent.sleep(_EMPTY_STEP_S)

    @property
    def is_settled(self) -> bool:
        """True if the counters of a process that was killed are final."""
        return self.group is None or not self.group.is_populated

    def close(self, terminated: bool, sent: frozenset[int]) -> tuple[ProcessEnd | None, ResourceUsage]:
        """Return why the process ended, and what it used; what it has left behind is still watched."""
        child = self._child
        assert child is not None
        usage = self._usage(child)
        evidence = Evidence(
            child.killed_by,
            not child.is_lost,
            self.limits,
            self._session_limits,
            self._watched,
            terminated,
            sent,
            self._memory_events(),
            usage.cpu_ms,
            usage.peak_bytes,
        )
        self._exited = True
        if not self._is_left():
            self._over()
        return why(evidence), usage

    def end(self) -> None:
        """Kill what is left and watch no longer: the session ends."""
        self.kill()
        self._stop()

    def sweep(self) -> None:
        """Remove the group of an ended process if nothing of it is left by now."""
        if self._exited and not self._is_left():
            self._over()

    def _usage(self, child: Child) -> ResourceUsage:
        if self.group is None:
            return usage_of(child, self._peak)
        peak = self.group.number("memory.peak")
        return ResourceUsage(
            cpu_ms=self.group.cpu_ms,
            peak_bytes=max(self._peak, child.peak_bytes) if peak is None else peak,
            complete=peak is not None and not self.group.is_populated,
        )

    def _memory_events(self) -> MemoryEvents:
        if self.group is None or self._ooms_above is None:
            return MemoryEvents()
        own = self.group.numbers("memory.events")
        (session, service), (session_before, service_before) = self._ooms_above(), self._ooms_before
        return MemoryEvents(
            own.get("oom_kill", 0), own.get("oom", 0), session - session_before, service - service_before
        )

    def _run(self) -> None:
        """Look until the time is over, a limit is reached, or nothing is left."""
        # Without a group what leaves its parent is known only if it was seen before.
        looks = self._sampled or self.limits.get(CPU_TIME) or self._tree is not None
        while not self._exited or self._is_left():
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._watched = Measured(WALL, self.limits.get(WALL), 0)
            elif looks:
                self._watched = self._look()
            if self._watched is not None:
                self._end_it()
                break
            gevent.sleep(min(left, SAMPLE_S) if looks or self._exited else left)
        self._watch = None  # a greenlet that holds its own account would need the collector
        if self._exited:
            self.sweep()

    def _end_it(self) -> None:
        if self.kill() or self._child is None:
            return
        try:
            self._child.kill_group()
        except OSError as error:
            _log.warning("the group of process %d cannot be killed: %s", self._child.pid, error)

    def _look(self) -> Measured | None:
        cpu_limit = self.limits.get(CPU_TIME)
        if cpu_limit and self.group is not None and (used := self.group.cpu_ms) >= cpu_limit:
            return Measured(CPU_TIME, used, 0)
        members = self._members() if self._sampled or self._tree is not None else []
        if not self._sampled:
            return None
        count = sum(seen.threads for seen in members)
        if PROCESSES in self._sampled and count > self.limits.get(PROCESSES):
            return Measured(PROCESSES, count, len(members))
        if MEMORY in self._sampled:
            limit = self.limits.get(MEMORY)
            used = memory_of(members, limit)
            self._peak = max(self._peak, used)
            if used >= limit:
                return Measured(MEMORY, used, len(members))
        return None

    def _members(self) -> list[Seen]:
        if self.group is not None:
            return members_of(self.group.pids)
        return [] if self._tree is None else self._tree.look()

    def _is_left(self) -> bool:
        """Return whether something of an ended process lives on."""
        if self.group is not None:
            return self.group.is_populated
        return self._watch is not None and bool(self._members())

    def _over(self) -> None:
        self._stop()
        group, self.group = self.group, None
        if group is not None and not group.remove():
            self.group = group  # something came back to life in it: the end of the session removes it
            return
        self._on_over(self)

    def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None and watch is not gevent.getcurrent():
            watch.kill(block=False)
