"""Signals on their way from a stand-in to its program outside."""

from __future__ import annotations

import os
import resource

from execserver.zygote.supervision.trap.process_status import Status

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGCHLD = 1, 2, 3, 9, 15, 17
SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH = 18, 19, 20, 21, 22, 28
CATCHABLE_STOPS = frozenset((SIGTSTP, SIGTTIN, SIGTTOU))
STOPS = CATCHABLE_STOPS | {SIGSTOP}
# What shells, terminals and `timeout` send to whole jobs.  A program outside has a process group of its own,
# which is the part outside of its job, so all of it gets these.  Whether one was sent to a job or to one
# process cannot be seen.
_TO_JOBS = STOPS | {SIGINT, SIGQUIT, SIGTERM, SIGCONT, SIGWINCH}


def send(program: int, signum: int, is_from_kernel: bool = False) -> None:
    """Send a signal to a program that leads its session, or to its whole group; 0 is no program."""
    if not program:
        return
    # A hangup comes to jobs from a terminal, and to a single process from whoever wants it to read its files.
    to_group = signum in _TO_JOBS or (signum == SIGHUP and is_from_kernel)
    try:
        (os.killpg if to_group else os.kill)(program, signum)
    except OSError:
        pass  # it belongs to another user by now


def handling(pid: int) -> tuple[int, int]:
    """Return the masks of signals that a process ignores and handles, bit N-1 for signal N."""
    try:
        status = Status(pid)
    except (OSError, ValueError):
        return 0, 0
    return status.ignored, status.caught


def dies_of(pid: int, signum: int) -> bool:
    """Return whether a signal ends a process by default; see to it that it leaves no core dump."""
    ignored, caught = handling(pid)
    if not signum or (ignored | caught) & 1 << signum - 1:
        return False
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except OSError:
        return False
    return True
