"""Sandbox roots that bubblewrap makes, where namespaces are refused to us but not to it.

A command gets a bubblewrap monitor: a fork of the zygote that leads the session, starts bubblewrap in a
process group of its own, and passes signals on to the group of the command, whose number only bubblewrap
knows.  The monitor reports as a sandbox init does.  A file worker is this program, executed by bubblewrap
inside the sandbox root, since a fork of the zygote cannot get there.

Bubblewrap itself gets no variable of the request.  It is executed by descriptor, after a check that it is
still the file that was probed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import os

from execserver.protocol.errors import strerror
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.backends import bwrap
from execserver.sandbox.kernel import landlock, privileges
from execserver.sandbox.kernel.limits import leave_descriptors_to_others
from execserver.sandbox.plan import ROOT_EMPTY, PlanRefused
from execserver.sandbox.rootfs import landlock_rules
from execserver.zygote.confine import child
from execserver.zygote.confine.back_end import BackEnd, refused
from execserver.zygote.confine.bubblewrap_arguments import Wrapper, readable_memory
from execserver.zygote.confine.child import EVERY_SIGNAL, EXIT_NOT_PREPARED, KEPT, REPORT
from execserver.zygote.confine.command import take_stdio
from execserver.zygote.confine.held_start import HeldStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.resources.rlimits import ChildLimits
    from execserver.sandbox.backends.bwrap import Bwrap
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.back_end import Host
    from execserver.zygote.confine.child import Become
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.confinement import Confinement

WORKER_ARGUMENT = "--execserver-fs-worker"

_STATUS_BYTES = 4096
_SIGCHLD = 17
# The signals that a monitor waits for, but that are not for the command.
_NOT_PASSED_ON = (_SIGCHLD, _signal.SIGTTIN, _signal.SIGTTOU)


class Bubblewrap(BackEnd):
    """Bubblewrap for the commands and file workers of one plan."""

    has_root = True
    plan: SandboxPlan

    def __init__(self, host: Host, confinement: Confinement) -> None:
        self._host = host
        self._record = confinement.plan
        self.plan = host.plans.plan(confinement.plan)
        self._routing: Routing | None = None
        try:
            self._program = bwrap.decode(confinement.detail)
        except PlanRefused as error:
            raise refused(str(error)) from None
        # Bubblewrap itself, and perhaps the Landlock stage.  A supervisor lets these run unasked; a wrong
        # number would have it judge the shell, or not judge the first program.
        self.builders = 2 if landlock_rules.closes_fifos(landlock.abi(host.kernel), self.plan) else 1

    def route(self, routing: Routing) -> None:
        """Have each monitor listen for the proxies of its command in the network that bubblewrap makes."""
        if not self._program.joinable:
            raise refused("the networks of this bubblewrap cannot be joined")
        self._routing = routing

    def command(self, command: Command, covers: Sequence[Mount]) -> Become:
        """Return what a fork does to be the monitor of a command."""
        host, program, plan, routing = self._host, self._program, self.plan, self._routing
        return lambda report, _: monitor_command(
            host, program, plan, command, covers, report, routing=routing
        )

    def watched(
        self, command: Command, covers: Sequence[Mount], channel: int, watch: Callable[[], None]
    ) -> Become:
        """Return the same, with bubblewrap itself watched: nothing of ours runs behind it."""
        host, program, plan, routing = self._host, self._program, self.plan, self._routing
        return lambda report, _: monitor_command(
            *(host, program, plan, command, covers, report, channel), watch, routing
        )

    def worker(self, socket: int, serve: Callable[[int], None]) -> Become:
        """Return what a fork does to become bubblewrap, which executes a file worker."""
        kernel, program, plan, record = self._host.kernel, self._program, self.plan, self._record
        return lambda report, _: become_worker(kernel, program, plan, record, socket, report)

    def unwatchable(self, is_notified: bool) -> str:
        """Return why this bubblewrap cannot be watched; "" when it can."""
        # A listener's filter needs no_new_privs, under which a set-user-id bit is void.
        if is_notified and self._program.setuid:
            return "a bubblewrap with the setuid bit cannot build a sandbox whose programs are watched"
        return ""


def monitor_command(
    host: Host,
    program: Bwrap,
    plan: SandboxPlan,
    command: Command,
    covers: Sequence[Mount],
    report: int,
    kept: int = -1,
    watch: Callable[[], None] | None = None,
    routing: Routing | None = None,
) -> None:
    """Be the bubblewrap monitor of a command until it ends; never returns.

    `watch` is called before bubblewrap is started, and finds the descriptor `kept` as KEPT.  With a `routing`
    the command starts once its network leads to proxies.
    """
    status, kernel = EXIT_NOT_PREPARED, host.kernel
    try:
        _begin(kernel, report)
        # Stdio first: `keep_only` takes numbers 3 and 4, and closes what the command's stdio came as.
        take_stdio(command)
        channels = _keep_only(kernel, report, kept, routing)
        report = REPORT
        if watch is not None:
            watch()
        wrapper = Wrapper(kernel, program, plan)
        told, tells = _status_pipe()
        held = None if routing is None else HeldStart(kernel, routing)
        line = wrapper.command_line(command, covers, tells, held)
        pid = _started(host, wrapper, line, command.limits)
        # Else the pipe would not end with bubblewrap.
        os.close(tells)
        first = os.read(told, _STATUS_BYTES)
        # What bubblewrap could not set up is no failed start: it prints why, and the status is 1.
        inside = bwrap.first_process(first)
        if held is not None and inside:
            held.go(pid, inside)
        child.tell_running(inside)
        # Copies in the monitor would keep the command's pipes open after it has closed its own.
        for number in (0, 1, 2, *channels):
            os.close(number)
        ended = _wait_for(pid, inside)
        child.tell_ended(_true_status(ended, first + _rest(told)))
        status = 0
    except (OSError, PlanRefused) as error:
        _tell_failure(report, error)
    finally:
        os._exit(status)


def _keep_only(kernel: Kernel, report: int, kept: int, routing: Routing | None) -> range:
    """Keep stdio, the report and the channels of a monitor; return the numbers of these, KEPT first."""
    channels = [kept] if kept >= 0 else []
    if routing is not None:
        channels.append(routing.channel)
        routing.channel = REPORT + len(channels)  # its number from here on
    child.keep_only(kernel, report, *channels)
    return range(KEPT, KEPT + len(channels))


def _status_pipe() -> tuple[int, int]:
    """Return the ends of a pipe for bubblewrap's status messages; it inherits the second."""
    told, tells = os.pipe2(os.O_CLOEXEC)
    os.set_inheritable(tells, True)
    return told, tells


def _started(host: Host, wrapper: Wrapper, line: Sequence[bytes], limits: ChildLimits) -> int:
    """Start bubblewrap, with the limits of its command; return its pid."""
    leave_descriptors_to_others()
    limits.apply()
    # An empty environment: a variable of the request, such as LD_PRELOAD, would act on bubblewrap itself,
    # outside.  `--setenv` carries the command's.  A process group of its own: a signal to bubblewrap would
    # kill it and not reach the command.
    return host.libc.spawn_in_group(wrapper.program(), line, ())


def become_worker(
    kernel: Kernel, program: Bwrap, plan: SandboxPlan, record: bytes, socket: int, report: int
) -> None:
    """Become bubblewrap, which becomes a file worker on a socket; never returns.

    Descriptor 2 is the report: either bubblewrap prints an error there, or the worker reports that it runs.
    """
    try:
        _begin(kernel, report)
        paths = ExecServerRuntimePaths.detect()
        wrapper = Wrapper(kernel, program, plan)
        # The plan travels in memory: no file of it has to be shown in the sandbox root.
        numbers = [socket, readable_memory(record)]
        os.set_inheritable(socket, True)
        argv = paths.command(WORKER_ARGUMENT, *(str(number) for number in numbers))
        # In a narrow sandbox root this program would not be there to be executed.
        readable = [os.fsencode(folder) for folder in paths.program_folders()]
        line = wrapper.worker_line(argv, readable if plan.root == ROOT_EMPTY else ())
        path = wrapper.program()
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(report, 2)
        # `_begin` blocked every signal, and an exec would keep that.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        os.execve(path, line, {})
    except (OSError, PlanRefused) as error:
        _tell_failure(report, error)
    finally:
        os._exit(EXIT_NOT_PREPARED)


def _begin(kernel: Kernel, report: int) -> None:
    child.tie(kernel)
    child.check_starter(kernel, report)
    privileges.leave_session_keyring(kernel)


def _wait_for(program: int, group: int) -> int:
    """Pass signals on to the command's group until bubblewrap has ended; return its wait status."""
    # All signals are blocked.  One that comes between the waitpid and the wait for signals stays pending.
    while True:
        pid, status = os.waitpid(program, os.WNOHANG)
        if pid:
            return status
        number = _signal.sigwaitinfo(EVERY_SIGNAL).si_signo
        # Without a number from bubblewrap `group` is 0, which would mean this process's own group.
        if number not in _NOT_PASSED_ON and group > 1:
            try:
                os.killpg(group, number)
            except OSError:
                pass  # it has ended


def _true_status(status: int, told: bytes) -> int:
    """Return the command's wait status; without an exit code in `told` bubblewrap itself has failed."""
    return status if b'"exit-code"' in told else EXIT_NOT_PREPARED << 8


def _rest(told: int) -> bytes:
    data = b""
    while True:
        piece = os.read(told, _STATUS_BYTES)
        if not piece:
            return data
        data += piece


def _tell_failure(report: int, error: OSError | PlanRefused) -> None:
    if isinstance(error, OSError):
        reason = error.strerror or strerror(error.errno or errno.EIO)
    else:
        reason = str(error)
    child.tell_failure(report, os.fsencode(f"bubblewrap: {reason}"))
