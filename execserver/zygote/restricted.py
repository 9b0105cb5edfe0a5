"""Children of the zygote that give up rights without entering a view, and those that only refuse.

A filter or Landlock needs no namespaces: the child restricts itself between fork and exec, and is then the
command itself, the leader of its session as any other.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import fcntl
import os
import select
import time

from execserver.sandbox import privileges
from execserver.sandbox.limits import leave_descriptors_to_others
from execserver.zygote.init import Command, start_program, take_stdio
from execserver.zygote.records import STAGE_EXEC, STAGE_VIEW
from execserver.zygote.spawn import SpawnFailure, check_deadline, enter_cwd, with_shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest

_EXIT_REFUSED = 1
_REPORT = 3
KEPT = 4
_REPORT_BYTES = 4096
_SIGKILL = 9


def command_of(request: SpawnRequest, descriptors: Sequence[int]) -> Command:
    """Return what a request starts, on the descriptors that came with it; SpawnFailure if some are lost."""
    if request.slave:
        env = with_shell(request.env)
        return Command(request.argv, env, request.cwd, request.arg0, slave=request.slave)
    if len(descriptors) != 2 + request.pipe_stdin:
        raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
    stdin = descriptors[0] if request.pipe_stdin else None
    stdio = (stdin, *descriptors[-2:])
    return Command(request.argv, request.env, request.cwd, request.arg0, stdio)


def start_refusal(request: SpawnRequest, descriptors: Sequence[int]) -> int:
    """Start a child that says why the command is refused and exits; return its pid, or raise SpawnFailure."""
    command = command_of(request, descriptors)
    status, _, text = request.refusal.partition(b" ")
    pid = _fork()
    if pid:
        return pid
    try:
        os.setsid()
        take_stdio(command)
        os.write(2, text + b"\n")
    finally:
        os._exit(int(status))


def start_restricted(
    kernel: Kernel,
    libc: Libc,
    request: SpawnRequest,
    descriptors: Sequence[int],
    restrict: Callable[[], None],
    kept: int = -1,
) -> int:
    """Start the command as a process that has called `restrict`; return its pid, or raise SpawnFailure.

    `restrict` finds the descriptor `kept` as KEPT.
    """
    command = command_of(request, descriptors)
    enter_cwd(request.cwd)
    try:
        check_deadline(request)
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        pid = _fork()
        if pid == 0:
            _become(kernel, libc, command, restrict, theirs, kept)
        os.close(theirs)
    finally:
        os.chdir("/")
    await_restricted(pid, ours, request.deadline_ns)
    return pid


def start_restricted_worker(
    kernel: Kernel, socket: int, deadline_ns: int, restrict: Callable[[], None], serve: Callable[[int], None]
) -> int:
    """Start a child that has called `restrict` and serves a socket; return its pid, or raise SpawnFailure."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = _fork()
    if pid == 0:
        try:
            privileges.die_with_parent(kernel)
            if os.getppid() == parent:
                _keep(kernel, theirs, socket)
                _open_null_stdio()
                restrict_or_tell(restrict, _REPORT)
                serve(KEPT)
        finally:
            os._exit(_EXIT_REFUSED)
    os.close(theirs)
    await_restricted(pid, ours, deadline_ns)
    return pid


def await_restricted(pid: int, report: int, deadline_ns: int) -> None:
    """Wait until a child has restricted itself, which ends its report; raise SpawnFailure with the reason."""
    try:
        poll = select.poll()
        poll.register(report, select.POLLIN)
        if not poll.poll(milliseconds_until(deadline_ns)):
            os.kill(pid, _SIGKILL)
            raise SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT)
        reason = os.read(report, _REPORT_BYTES)
    finally:
        os.close(report)
    if reason:
        os.waitpid(pid, 0)
        raise SpawnFailure(STAGE_VIEW, errno.EPERM, details=[reason])


def milliseconds_until(deadline_ns: int) -> int | None:
    """Return how long a poll may last that ends with a deadline of the monotonic clock; None for ever."""
    return max(0, (deadline_ns - time.monotonic_ns()) // 1_000_000) + 1 if deadline_ns else None


def restrict_or_tell(restrict: Callable[[], None], report: int) -> None:
    """Call `restrict` and end the report; when it fails, tell why and end this process."""
    try:
        restrict()
    except OSError as error:
        os.write(report, os.fsencode(error.strerror or "unknown error"))
        os._exit(_EXIT_REFUSED)
    os.close(report)


def _become(
    kernel: Kernel, libc: Libc, command: Command, restrict: Callable[[], None], report: int, kept: int
) -> None:
    """Become the command; never returns."""
    status = _EXIT_REFUSED
    try:
        privileges.die_with_parent(kernel)
        os.setsid()
        take_stdio(command)
        _keep(kernel, report, kept)
        _take_default_signals()
        restrict_or_tell(restrict, _REPORT)
        leave_descriptors_to_others()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        status = -start_program(command, command.env, libc.execute)
    finally:
        os._exit(status)


def _take_default_signals() -> None:
    """Undo what the interpreter changed at its start, and what a server that nohup started ignores."""
    for number in range(1, _signal.NSIG):
        if _signal.getsignal(number) not in (_signal.SIG_DFL, None):  # None: the C library's own
            _signal.signal(number, _signal.SIG_DFL)


def _keep(kernel: Kernel, report: int, kept: int) -> None:
    """Keep two descriptors above stdio, as _REPORT and KEPT, or the first one only."""
    # Out of the way of both numbers first; a moved one is never below them.
    report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)
    if kept >= 0:
        kept = fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)
        os.dup2(kept, KEPT, inheritable=False)
    os.dup2(report, _REPORT, inheritable=False)
    privileges.close_from(kernel, KEPT + 1 if kept >= 0 else KEPT)


def _open_null_stdio() -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        raise SpawnFailure(STAGE_EXEC, error.errno or errno.EAGAIN) from None
