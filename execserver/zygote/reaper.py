"""Finding, killing and reaping the children of this process, down to the last descendant."""

from __future__ import annotations

import os

from execserver.zygote.groups import all_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from resource import struct_rusage

_SIGKILL = 9
_WALL = 0x40000000  # traced threads that are no children, too
_EVERY_CHANGE = os.WNOHANG | os.WUNTRACED | _WALL


def own_children() -> list[int]:
    """Return the pids of this process's children, zombies included."""
    if not _has_children():
        return []  # the usual answer when a call has ended, found with one system call
    try:
        return [pid for task in os.listdir("/proc/self/task") for pid in _children_of_task(task)]
    except FileNotFoundError:
        # The kernel was built without the `children` file (CONFIG_PROC_CHILDREN).
        this = os.getpid()
        return [pid for pid, stat in all_processes().items() if stat[1] == this]


def reap_ended() -> list[tuple[int, int, struct_rusage]]:
    """Reap every child that has ended; return pid, wait status and what it has used of each."""
    ended: list[tuple[int, int, struct_rusage]] = []
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status, used))


def changed_children() -> Iterator[tuple[int, int]]:
    """Reap every child that has ended, and take every stop of children and traced threads, one by one.

    Each comes as pid and wait status.  What is done about one may end another, which then comes as well.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, _EVERY_CHANGE)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def is_continued(pid: int) -> bool:
    """Return whether a child has been continued since the last look."""
    # Asked for one child only: of a traced thread it would take the answer from under its real parent.
    try:
        return os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG) is not None
    except ChildProcessError:
        return False


def end_all_children() -> None:
    """Kill and reap until no child is left.  Blocks.

    The caller is a child subreaper: what a killed child leaves behind becomes a child of this process, also
    from sessions of its own, and is found in the next round.
    """
    while True:
        for pid in own_children():
            try:
                os.kill(pid, _SIGKILL)
            except OSError:
                pass  # it belongs to another user by now
        # Wait for one end at least before the next scan, or the loop would spin.
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        reap_ended()


def _has_children() -> bool:
    try:
        # WNOWAIT leaves an ended child unreaped.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children_of_task(task: str) -> list[int]:
    descriptor = os.open(f"/proc/self/task/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(descriptor, 65536):
            data += piece
    finally:
        os.close(descriptor)
    return [int(pid) for pid in data.split()]
