"""Confined processes for callers without a zygote: the sandbox command and the file helper.

The caller has one thread.  The confined process is a fork of it that is made here.  It has the caller's stdio
and is killed when the caller ends.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from execserver.protocol.errors import strerror
from execserver.sandbox.kernel.namespaces import flags_for
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.child import EXIT_NOT_PREPARED, fork_child
from execserver.zygote.confine.command import Command
from execserver.zygote.confine.sandbox_init import Setup, run_command, run_function
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.child import Become, Report
    from execserver.zygote.confine.sandbox_init import Before

_PREPARE_MS = 30_000  # to build a sandbox root; a network file system may hang
_SIGCHLD = 17
_SIGKILL = 9
_PASSED_ON = (1, 2, 3, 15)


def run_confined(
    plan: SandboxPlan,
    argv: Sequence[bytes],
    env: Sequence[bytes],
    cwd: bytes,
    arg0: bytes | None = None,
    extra: Sequence[Mount] = (),
    before: Before | None = None,
    kernel: Kernel | None = None,
    end_signal: int = 0,
) -> int:
    """Run a program in the sandbox root of a plan, with this process's stdio, to its end.

    Return the program's raw wait status.  SIGHUP, SIGINT, SIGQUIT and SIGTERM are passed on; `end_signal`,
    which the caller blocks, ends everything.  `extra` are mounts on top of the plan's; `before` is called in
    the new namespaces.  Raises RootFailed; nothing has run then.
    """
    kernel, libc = kernel or Kernel(), Libc()
    command = Command(argv, env, cwd, arg0)
    # Blocked before the fork: a signal that comes in between must not end this process alone.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (*_PASSED_ON, _SIGCHLD))
    try:
        pid, report = _fork(kernel, plan, lambda setup: run_command(setup, libc, command, before), extra)
        return await_end(pid, report, end_signal)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def confine_self_then_call(
    plan: SandboxPlan, function: Callable[[], int], kernel: Kernel | None = None
) -> int:
    """Call a function in a fork, in the sandbox root of a plan; return its result, an exit status.

    The function has this process's descriptors 0, 1 and 2, may read everything in the sandbox root and write
    what the plan lets be written, and must import nothing.  A function that dies counts as status 1.  Raises
    RootFailed; nothing was called then.
    """
    kernel = kernel or Kernel()
    pid, report = _fork(kernel, plan, lambda setup: run_function(setup, function))
    return exit_status_of(pid, report)


def _fork(
    kernel: Kernel, plan: SandboxPlan, become: Callable[[Setup], None], extra: Sequence[Mount] = ()
) -> tuple[int, Report]:
    """Fork a sandbox init; return its pid and its report once it has reported that all runs."""
    return running_child(
        kernel,
        lambda report, identity: become(Setup(kernel, plan, identity, report, extra)),
        flags_for(plan),
    )


def running_child(kernel: Kernel, become: Become, flags: int = 0) -> tuple[int, Report]:
    """Fork a confined child; return its pid and its report once it has reported that all runs.

    Raises RootFailed; nothing runs then.
    """
    try:
        pid, report = fork_child(kernel, become, flags)
    except OSError as error:
        raise RootFailed(f"cannot make namespaces: {strerror(error.errno or 0)}") from None
    reason = report.await_first_word(pid, _PREPARE_MS)
    if reason is not None:
        report.end(os.waitpid(pid, 0)[1])
        raise RootFailed(os.fsdecode(reason))
    return pid, report


def exit_status_of(pid: int, report: Report) -> int:
    """Wait for the end of a child that runs a function; return the function's result, 1 if it died."""
    _, status = os.waitpid(pid, 0)
    report.end(status)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else EXIT_NOT_PREPARED


def await_end(pid: int, report: Report, end_signal: int) -> int:
    """Wait until the command of a child has ended; return its raw wait status.

    Signals that come meanwhile go to the child's group.  The caller blocks them, so none is lost between two
    waits.
    """
    awaited = (*_PASSED_ON, _SIGCHLD, *filter(None, [end_signal]))
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            return report.end(status)
        signum = _signal.sigwaitinfo(awaited).si_signo
        if signum != _SIGCHLD:
            # `child.tie` made the child lead a group.  For init, SIGKILL takes all inside along.
            try:
                os.killpg(pid, _SIGKILL if signum == end_signal else signum)
            except OSError:
                pass  # it ends just now
