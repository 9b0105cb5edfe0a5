"""Signals to process groups whose session leader may be gone, which never reach an unrelated process.

A group has its session leader's number as process group and session.  While the leader is unreaped, the
kernel cannot reuse the number, and killpg is safe.  Afterwards a signal goes only to processes that are seen
in the group, descend from the zygote and are held by a pidfd.  A process whose pid is the group's number
shows that the number was reused and the group is over.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    SendSignal = Callable[[int, int], None]  # pidfd, signal number

_EXIT_CODE = 49  # counted from the state letter


def process_stat(pid: int) -> tuple[bytes, int, int, int] | None:
    """Return state letter, parent, process group and session of a process; None when there is none."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    state, parent, group, session = fields[:4]
    return state, int(parent), int(group), int(session)


def _stat_fields(pid: int) -> list[bytes] | None:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # A process chooses its name, which stands in parentheses and may hold spaces and parentheses of its own.
    return data[data.rfind(b")") + 2 :].split()


def zombie_status(pid: int, parent: int) -> int | None:
    """Return the wait status of a child of `parent` that has ended and is not reaped.

    None for any other process, and where the kernel does not show the status.
    """
    fields = _stat_fields(pid)
    if fields is None or fields[0] != b"Z" or int(fields[1]) != parent:
        return None
    try:
        hidden = os.geteuid() not in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None
    # To a process without the right to trace it the kernel shows a status of 0.
    return None if hidden else int(fields[_EXIT_CODE])


def all_processes() -> dict[int, tuple[bytes, int, int, int]]:
    """Return pid to `process_stat` for every process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = process_stat(int(name))
            if stat is not None:
                found[int(name)] = stat
    return found


def descendants(root: int) -> list[int]:
    """Return the pids of what descends from a process."""
    processes = all_processes()
    return [pid for pid in processes if _descends(processes, pid, root)]


def has_members(group: int) -> bool:
    """Return whether a group exists; exact right after its leader was reaped, a hint later."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # there are some, and all of them belong to other users
    return True


def signal_members(send: SendSignal, group: int, root: int, signum: int, leader_reaped: bool) -> bool:
    """Signal the members of a group that descend from process `root`; return whether one was reached."""
    processes = all_processes()
    if leader_reaped and group in processes:
        return False  # the number was reused
    reached = False
    for pid, (state, _, own_group, session) in processes.items():
        if own_group == session == group and state != b"Z" and _descends(processes, pid, root):
            reached |= _signal_if_still(send, pid, group, signum)
    return reached


def _descends(processes: dict[int, tuple[bytes, int, int, int]], pid: int, root: int) -> bool:
    # Bounded: the scan is no snapshot, and reused numbers could make a circle of parents.
    for _ in range(len(processes)):
        stat = processes.get(pid)
        if stat is None:
            return False
        pid = stat[1]
        if pid == root:
            return True
    return False


def _signal_if_still(send: SendSignal, pid: int, group: int, signum: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The number may have been reused between the scan and the pidfd; from here on it cannot be.
        stat = process_stat(pid)
        if stat is None or stat[2] != group:
            return False
        send(pidfd, signum)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
