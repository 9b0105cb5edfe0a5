"""Confined processes for callers without a zygote: the sandbox command and the file helper.

The caller has one thread.  What is confined runs in the fork of it that is made here, with its stdio, and is
killed when the caller ends.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select

from execserver.protocol.errors import strerror
from execserver.sandbox.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.syscalls import Kernel
from execserver.sandbox.view import ViewFailed
from execserver.zygote.init import ENDED, RUNNING, WAIT_STATUS, Command, Setup, run_command, run_function
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.zygote.init import Adjust

_PREPARE_MS = 30_000  # for a view to be built; a network file system may hang
_REPORT_BYTES = 4096
_SIGCHLD = 17
_SIGKILL = 9
_PASSED_ON = (1, 2, 3, 15)


def run_confined(
    plan: ViewPlan,
    argv: Sequence[bytes],
    env: Sequence[bytes],
    cwd: bytes,
    arg0: bytes | None = None,
    extra: Sequence[Mount] = (),
    before: Adjust | None = None,
    kernel: Kernel | None = None,
    end_signal: int = 0,
) -> int:
    """Run a program inside the view of a plan, with this process's stdio, to its end.

    SIGHUP, SIGINT, SIGQUIT and SIGTERM are passed on; `end_signal`, which the caller blocks, ends everything.
    Returns the program's raw wait status.  `extra` are mounts on top of the plan's; `before` is called in the
    new namespaces with the environment and returns the one to use.  Raises ViewFailed; nothing has run then.
    """
    kernel, libc = kernel or Kernel(), Libc()
    command = Command(argv, env, cwd, arg0)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (*_PASSED_ON, _SIGCHLD))
    try:
        pid, report = _fork(kernel, plan, lambda setup: run_command(setup, libc, command, before), extra)
        return await_end(pid, report, end_signal)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def confine_self_then_call(plan: ViewPlan, function: Callable[[], int], kernel: Kernel | None = None) -> int:
    """Call a function in a forked process inside the view of a plan; return its result, an exit status.

    The function finds this process's descriptors 0, 1 and 2, may read everything in the view and write what
    the plan lets be written, and must import nothing.  A function that dies counts as status 1.  Raises
    ViewFailed; nothing was called then.
    """
    pid, report = _fork(kernel or Kernel(), plan, lambda setup: run_function(setup, function))
    os.close(report)
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


def _fork(
    kernel: Kernel, plan: ViewPlan, become: Callable[[Setup], None], extra: Sequence[Mount] = ()
) -> tuple[int, int]:
    """Fork the first process of a sandbox; return its pid and its report once it says that all runs."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    identity = Identity()
    try:
        pid, mapped = fork_into(kernel, flags_for(plan))
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        raise ViewFailed(f"cannot make namespaces: {strerror(error.errno or 0)}") from None
    if pid == 0:
        try:
            become(Setup(kernel, plan, identity if mapped else None, theirs, extra))
        finally:
            os._exit(1)
    os.close(theirs)
    reason = why_not(pid, ours)
    if reason is not None:
        os.close(ours)
        os.waitpid(pid, 0)
        raise ViewFailed(reason)
    return pid, ours


def await_end(pid: int, report: int, end_signal: int) -> int:
    """Wait until what runs has ended, passing signals on; return its raw wait status.  Closes the report."""
    status = pass_signals_until_end(pid, end_signal)
    # Its end is in the pipe before it can be reaped; RUNNING was read before.
    told = os.read(report, _REPORT_BYTES)
    os.close(report)
    if told[:1] == ENDED and len(told) == 1 + WAIT_STATUS.size:
        return int(WAIT_STATUS.unpack_from(told, 1)[0])
    return status


def why_not(pid: int, report: int) -> str | None:
    """Wait for the first word of a report; return None when all runs, else why not."""
    poll = select.poll()
    poll.register(report, select.POLLIN)
    if not poll.poll(_PREPARE_MS):
        os.kill(pid, _SIGKILL)
        return "the view took too long to build"
    # Of one byte only: what follows may have come already.
    told = os.read(report, 1)
    if told == RUNNING:
        return None
    return os.fsdecode(os.read(report, _REPORT_BYTES)) if told else "its first process was killed"


def pass_signals_until_end(pid: int, end_signal: int) -> int:
    """Wait for a child to end and return its wait status; signals that come meanwhile go to its group."""
    awaited = (*_PASSED_ON, _SIGCHLD, *filter(None, [end_signal]))
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            return status
        signum = _signal.sigwaitinfo(awaited).si_signo
        if signum != _SIGCHLD:
            try:
                os.killpg(pid, _SIGKILL if signum == end_signal else signum)
            except OSError:
                pass  # it ends just now
