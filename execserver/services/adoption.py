"""Reaping zygotes, and ending what one leaves behind that died early: its descendants are this process's now.

A process of this process's own session was never a zygote's and is left alone, and so are zygotes; everything
else is killed and reaped, round after round, since each death may hand down further children.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

import gevent

from execserver.zygote.groups import process_stat
from execserver.zygote.reaper import own_children

_SIGKILL = 9
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.5


class Orphanage:
    """Ends the children that no zygote looks after.

    `spared` tells the pids of all unreaped zygotes; `on_reaped(pid, wait status)` is called for each orphan.
    """

    def __init__(self, spared: Callable[[], Collection[int]], on_reaped: Callable[[int, int], None]) -> None:
        self._spared = spared
        self._on_reaped = on_reaped

    def end_orphans(self) -> None:
        """Kill and reap until no orphan is left; one stuck in the kernel keeps this waiting."""
        pause = _FIRST_PAUSE_S
        while orphans := self._orphans():
            for pid in orphans:
                _kill(pid)
            if not self._reap(orphans):
                gevent.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def reap_ended_orphans(self) -> None:
        """Reap those orphans that ended by themselves, as the first process of a container must."""
        self._reap(self._orphans())

    def _reap(self, pids: Collection[int]) -> int:
        reaped = 0
        for pid in pids:
            status = _wait_status(pid)
            if status is not None:
                reaped += 1
                self._on_reaped(pid, status)
        return reaped

    def _orphans(self) -> list[int]:
        spared = self._spared()
        own_session = os.getsid(0)
        orphans = []
        for pid in own_children():
            stat = process_stat(pid)
            if pid not in spared and stat is not None and stat[3] != own_session:
                orphans.append(pid)
        return orphans


def wait_for_end(pid: int) -> int:
    """Wait for the end of a child, be it near or stuck in the kernel; reap it and return its wait status."""
    pause = _FIRST_PAUSE_S
    while (status := _wait_status(pid)) is None:
        gevent.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
    return status


def _wait_status(pid: int) -> int | None:
    """Reap a child; None while it runs."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return _SIGKILL  # somebody else reaped it
    return status if reaped else None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        pass
