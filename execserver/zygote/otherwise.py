"""Confined processes where a view of our own was refused, for callers without a zygote.

The order is the server's: bubblewrap, Landlock for what it expresses exactly, refusal with blocker and cure.
Everything is tried only now, so whoever may make namespaces pays nothing for it.  A view that failed for
another reason, where views can be made, stays failed.
"""

from __future__ import annotations

import os

from execserver.protocol.errors import strerror
from execserver.sandbox import landlock_only, privileges
from execserver.sandbox.back_ends import BUBBLEWRAP, LANDLOCK, Refusal, choose
from execserver.sandbox.bwrap import PROGRAM
from execserver.sandbox.syscalls import Kernel
from execserver.sandbox.view import ViewFailed
from execserver.zygote import restricted, wrapped
from execserver.zygote.confine import await_end, pass_signals_until_end, why_not
from execserver.zygote.examined import examine
from execserver.zygote.libc import Libc
from execserver.zygote.records import SpawnRequest
from execserver.zygote.spawn import SpawnFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.bwrap import Bwrap
    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.report import Report
    from execserver.zygote.init import Command

_FAILED_STATUS = 1


def run_otherwise(
    plan: ViewPlan,
    command: Command,
    covers: Sequence[Mount],
    failed: ViewFailed,
    search_path: bytes,
    end_signal: int,
) -> int:
    """Run a command with this process's stdio to its end; return its raw wait status.

    `failed` is why there is no view of our own.  The caller blocks the signals that `run_confined` passes on,
    and `end_signal`.  Raises ViewFailed; nothing has run then.
    """
    report = examine(_unwritable(search_path, plan), command.cwd)
    name = _chosen(plan, report, failed)
    if name == BUBBLEWRAP and report.bwrap is not None:
        return _run_wrapped(plan, command, covers, report.bwrap, end_signal)
    if name == LANDLOCK:
        return _run_restricted(plan, command, end_signal)
    raise failed


def call_otherwise(plan: ViewPlan, function: Callable[[], int], failed: ViewFailed) -> int:
    """Call a function in a fork of this process under Landlock; return its result, an exit status.

    Bubblewrap is not used.  Raises ViewFailed; nothing was called then.
    """
    if _chosen(plan, examine(None, b"/"), failed) != LANDLOCK:
        raise failed
    kernel, parent = Kernel(), os.getpid()
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = _FAILED_STATUS
        try:
            privileges.die_with_parent(kernel)
            if os.getppid() == parent:
                restricted.restrict_or_tell(lambda: landlock_only.confine_self(kernel, plan), theirs)
                status = function()
        finally:
            os._exit(status)
    os.close(theirs)
    try:
        restricted.await_restricted(pid, ours, 0)
    except SpawnFailure as failure:
        raise _view_failed(failure) from None
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _FAILED_STATUS


def _chosen(plan: ViewPlan, report: Report, failed: ViewFailed) -> str:
    if report.native:
        raise failed  # views can be made, and this one not
    choice = choose(plan, report)
    if isinstance(choice, Refusal):
        raise ViewFailed(str(choice))
    return choice.name


def _run_wrapped(
    plan: ViewPlan, command: Command, covers: Sequence[Mount], program: Bwrap, end_signal: int
) -> int:
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            wrapped.guard_command(Kernel(), program, plan, command, covers, theirs)
        finally:
            os._exit(_FAILED_STATUS)
    os.close(theirs)
    reason = why_not(pid, ours)
    if reason is not None:
        os.close(ours)
        os.waitpid(pid, 0)
        raise ViewFailed(reason)
    return await_end(pid, ours, end_signal)


def _run_restricted(plan: ViewPlan, command: Command, end_signal: int) -> int:
    kernel = Kernel()
    request = SpawnRequest(0, command.argv, command.env, command.cwd, command.arg0, pipe_stdin=True)
    try:
        pid = restricted.start_restricted(
            kernel, Libc(), request, (0, 1, 2), lambda: landlock_only.confine_self(kernel, plan)
        )
    except SpawnFailure as failure:
        raise _view_failed(failure) from None
    return pass_signals_until_end(pid, end_signal)


def _unwritable(search_path: bytes, plan: ViewPlan) -> bytes:
    """Return a search path without the places where an earlier command may have put a program."""
    written = tuple(root.rstrip(b"/") + b"/" for root in plan.writable if root != b"/")
    return b":".join(
        folder
        for folder in search_path.split(b":")
        if not os.path.realpath(os.path.join(folder, PROGRAM)).startswith(written)
    )


def _view_failed(failure: SpawnFailure) -> ViewFailed:
    return ViewFailed(os.fsdecode(b" ".join(failure.details)) or strerror(failure.errno))
