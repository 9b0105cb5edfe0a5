"""The processes of one command and their memory, read from /proc: for limits where no control group can be.

What was seen once stays known, so a process that leaves its session and loses its parent is not lost, if it
was there at one look.  One that comes and leaves between two looks is: this is no wall, groups are.
"""

from __future__ import annotations

import os
import signal

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PARENT, _SESSION, _START, _RSS, _THREADS = 1, 3, 19, 21, 17  # behind the name in /proc/PID/stat


class Seen:
    """One process at one look."""

    __slots__ = ("parent", "pid", "resident", "session", "start", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent = int(fields[_PARENT])
        self.session = int(fields[_SESSION])
        self.threads = int(fields[_THREADS])
        self.start = int(fields[_START])  # with the pid it names a process for good
        self.resident = int(fields[_RSS]) * _PAGE_BYTES


class ProcessTree:
    """A command by the pid that leads its session, and all that descends from it."""

    def __init__(self, pid: int, known: dict[int, int] | None = None) -> None:
        self._leader = pid  # 0: nobody is found by the session any more
        self._known = dict(known or {})  # pid to start time
        self._leader_start = (
            self._known.get(pid, 0) if known else None
        )  # 0: it has ended; None: not looked yet

    @property
    def known(self) -> dict[int, int]:
        """What was seen at the last look, by pid and start time."""
        return dict(self._known)

    def look(self) -> list[Seen]:
        """Return the processes of the command that run now."""
        everybody = {seen.pid: seen for seen in map(_seen, _all_pids()) if seen is not None}
        known = {
            pid for pid, start in self._known.items() if pid in everybody and everybody[pid].start == start
        }
        found: set[int] = set()
        fresh = known | self._in_session(everybody)
        while fresh:
            found |= fresh
            fresh = {pid for pid, seen in everybody.items() if seen.parent in fresh} - found
        members = [everybody[pid] for pid in found]
        self._known = {seen.pid: seen.start for seen in members}
        return members

    def _in_session(self, everybody: dict[int, Seen]) -> set[int]:
        leader = everybody.get(self._leader)
        start = 0 if leader is None else leader.start
        if self._leader_start is None:
            self._leader_start = start
        if start not in (0, self._leader_start):
            # The number is another process's: that is given out only once nobody is left in the session.
            self._leader = 0
        return {pid for pid, seen in everybody.items() if self._leader and seen.session == self._leader}

    def kill(self) -> None:
        """Kill all of it, and what is forked meanwhile, as far as it can be seen."""
        for _ in range(3):
            # A parent that saw its child die first would go on: report, clean up, or exit by itself with 137.
            for seen in _parents_first(self.look()):
                _kill(seen)


def memory_of(members: list[Seen], limit: int) -> int:
    """Return the memory of processes; what they share counts once, if it matters for the limit."""
    resident = sum(seen.resident for seen in members)
    # Shares take up to milliseconds to read, and make the sum smaller only.
    return resident if resident < limit else sum(_share(seen) for seen in members)


def members_of(pids: list[int]) -> list[Seen]:
    """Return processes by their pids; those that have ended are left out."""
    return [seen for seen in map(_seen, pids) if seen is not None]


def _share(seen: Seen) -> int:
    try:
        with open(f"/proc/{seen.pid}/smaps_rollup", "rb") as file:
            line = next((line for line in file if line.startswith(b"Pss:")), b"")
    except OSError:
        return seen.resident  # another user's by now
    return int(line.split()[1]) * 1024 if line else seen.resident


def _parents_first(members: list[Seen]) -> list[Seen]:
    children: dict[int, list[Seen]] = {seen.pid: [] for seen in members}
    ordered: list[Seen] = []
    for seen in members:
        children.get(seen.parent, ordered).append(seen)
    for seen in ordered:  # which grows meanwhile
        ordered += children.pop(seen.pid)
    # Numbers that changed hands during the look can make a circle.
    return ordered + [seen for circle in children.values() for seen in circle]


def _kill(seen: Seen) -> None:
    try:
        pidfd = os.pidfd_open(seen.pid)
    except OSError:
        return
    try:
        again = _seen(seen.pid)  # the number may have been another's since the look; now it cannot change
        if again is not None and again.start == seen.start:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(pidfd)


def _seen(pid: int) -> Seen | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = data[data.rfind(b")") + 2 :].split()
    return None if fields[0] == b"Z" else Seen(pid, fields)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
