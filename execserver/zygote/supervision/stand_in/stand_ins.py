"""All stand-ins of a call, by thread: from a thread in its exec to the end of its process."""

from __future__ import annotations

import os
import time

from execserver.zygote.supervision.stand_in.code import CODES
from execserver.zygote.supervision.stand_in.file import StandInFile
from execserver.zygote.supervision.stand_in.stand_in import StandIn
from execserver.zygote.supervision.stand_in.tracing import EVENT_EXEC, Tracing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.stand_in.stand_in import Seized
    from execserver.zygote.supervision.trap.callers import Start
    from execserver.zygote.supervision.trap.notify import Listener, Notification

STAND_IN = "stand-in"  # the entry in `Kernel.without` of a kernel that cannot
_MEMORY = 1  # KCMP_VM
PATIENCE_S = 10.0  # for a thread to become a stand-in, which takes a millisecond


class StandIns:
    """The stand-ins, and the threads that become some.

    Its owner passes on the notifications of these threads and all wait statuses.
    """

    def __init__(self, kernel: Kernel, loop: EventLoop) -> None:
        self._kernel = kernel
        self._loop = loop
        self._tracing = Tracing(kernel) if can_stand_in(kernel) else None
        self._found: dict[int, StandIn] = {}
        self._is_looking = False
        self._spare: StandInFile | None = None
        self.filters = 0  # how many filters the shell has; a process with more has some of its own

    @property
    def are_coming(self) -> bool:
        """True while a thread may have to be heard so that it becomes a stand-in."""
        return any(one.is_on_its_way for one in self._found.values())

    def seize(self, listener: Listener, seized: Seized, start: Start) -> StandIn | None:
        """Begin to make a thread that waits in its exec a stand-in; None if it cannot be one: it waits on.

        Where a signal could end its wait it is halted at once, else once `go` is called.
        """
        tracing, status, tid = self._tracing, seized.status, seized.notification.tid
        # Filters of its own may refuse the exec of the stand-in, or kill the process for it.  Of two threads
        # of a process that execute, the kernel ends one.
        if tracing is None or status.filters > self.filters or self._is_busy(status.process):
            return None
        try:
            self._spare = file = self._spare or StandInFile(CODES[self._kernel.machine])
            tracing.seize(tid)
        except OSError:
            return None
        self._spare = None
        is_awaited = self._shares_memory(tid, status.parent)
        one = StandIn(self._loop, tracing, listener, seized, is_awaited, file, start, self._forget)
        self._found[tid] = one
        self._look_later()
        if not listener.holds:
            # If its wait is over by now, it stops elsewhere and is let go.
            one.halt()
        return one

    def has(self, tid: int) -> bool:
        """Return whether a thread is one of these."""
        return tid in self._found

    def asked(self, notification: Notification) -> bool:
        """Take a notification if it is of one of these threads; return whether it is."""
        one = self._found.get(notification.tid)
        if one is not None:
            one.asked(notification)
        return one is not None

    def changed(self, pid: int, status: int) -> bool:
        """Take a wait status if it is of one of these threads; return whether it is."""
        if os.WIFSTOPPED(status) and status >> 16 == EVENT_EXEC:
            self._rename(pid)
        one = self._found.get(pid)
        if one is not None:
            one.changed(status)
        return one is not None

    def _is_busy(self, process: int) -> bool:
        return any(one.process == process for one in self._found.values())

    def _rename(self, pid: int) -> None:
        """Find a thread that was not the first of its process, and has its number now."""
        assert self._tracing is not None
        if pid not in self._found:
            one = self._found.pop(self._tracing.former_thread(pid), None)
            if one is not None:
                one.moved(pid)
                self._found[pid] = one

    def _shares_memory(self, tid: int, parent: int) -> bool:
        """Return whether a thread may be a child of `vfork`, whose parent goes on when it has executed."""
        try:
            return self._kernel.call("kcmp", tid, parent, _MEMORY) == 0
        except OSError:
            return True

    def _forget(self, one: StandIn) -> None:
        if self._found.get(one.tid) is one:
            del self._found[one.tid]
        if one.file.descriptor >= 0:  # no process has had it
            if self._spare is not None:
                self._spare.close()
            self._spare = one.file

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._loop.after(PATIENCE_S, self._look)

    def _look(self) -> None:
        """Kill what takes too long; whoever has meddled with its own registers or code may never arrive."""
        self._is_looking = False
        before = time.monotonic() - PATIENCE_S
        for one in list(self._found.values()):
            if one.is_on_its_way and one.since <= before:
                one.give_up()
        if self.are_coming:
            self._look_later()


def can_stand_in(kernel: Kernel) -> bool:
    """Return whether there is code for this machine, and nobody wants to do without."""
    return kernel.machine in CODES and STAND_IN not in kernel.without
