"""Sandboxes of one zygote's side, started without a zygote's loop: each start waits until all runs."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Sequence

from execserver.zygote.confine.child import milliseconds_until
from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.records import SpawnRequest, WorkerRequest
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.stages import STAGE_EXEC


def start(sandboxes: Sandboxes, request: SpawnRequest, descriptors: Sequence[int]) -> int:
    """Start a command and wait until it runs; return the pid that stands for it and for all inside."""
    return _wait(sandboxes, sandboxes.begin(request, descriptors), request.deadline_ns)


def start_worker(sandboxes: Sandboxes, request: WorkerRequest, descriptors: Sequence[int]) -> int:
    """Start a file worker and wait until it serves; return its pid."""
    return _wait(sandboxes, sandboxes.begin_worker(request, descriptors), request.deadline_ns)


def _wait(sandboxes: Sandboxes, pid: int, deadline_ns: int) -> int:
    report = sandboxes.report_of(pid)
    if report is None:
        return pid
    poll = select.poll()
    poll.register(report, select.POLLIN)
    poll.poll(milliseconds_until(deadline_ns))
    late = sandboxes.give_up_overdue()
    failure = SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT) if late else sandboxes.hear(pid)
    if failure is None:
        return pid
    try:
        again = 0 if late else sandboxes.begin_again(pid)
    finally:
        os.waitpid(pid, 0)
        sandboxes.take_end(pid, 0)
    if again:
        return _wait(sandboxes, again, deadline_ns)
    raise failure
