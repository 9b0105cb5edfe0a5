"""Orphan reaping: reap zygotes, and end the descendants of one that died, which are children of this process.

Processes of this process's own session never belonged to a zygote; those and the zygotes are left alone.  All
other children are killed and reaped, round after round, since each death may bring further children.
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

    `spared` returns the pids of all unreaped zygotes; each reaped orphan gives `on_reaped(pid, wait_status)`.
    """

    def __init__(self, spared: Callable[[], Collection[int]], on_reaped: Callable[[int, int], None]) -> None:
        self._spared = spared
        self._on_reaped = on_reaped

    def end_orphans(self) -> None:
        """Kill and reap until no orphan is left; an orphan stuck in the kernel keeps this waiting."""
        pause = _FIRST_PAUSE_S
        while orphans := self._orphans():
            for pid in orphans:
                _kill(pid)
            if not self._reap(orphans):
                gevent.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def reap_ended_orphans(self) -> None:
        """Reap the orphans that have ended by themselves, as pid 1 of a container must."""
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
        # Every command leads a session of its own; what shares ours was started by this process itself.
        own_session = os.getsid(0)
        orphans = []
        for pid in own_children():
            stat = process_stat(pid)
            if pid not in spared and stat is not None and stat[3] != own_session:
                orphans.append(pid)
        return orphans


def wait_for_end(pid: int) -> int:
    """Wait for the end of a child, even one that is stuck in the kernel; reap it, return its wait status."""
    # By polling: gevent's child watchers reap children that are not theirs.
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
        return _SIGKILL  # another part of the program reaped it, and its status is lost
    return status if reaped else None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        pass
