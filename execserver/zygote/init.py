"""The first process of a sandbox: it builds the view, gives up everything, starts the command and reaps.

It is a fork of the zygote, or of a helper, and runs nothing but this code.  As pid 1 of its namespace it is
reached by SIGKILL and SIGSTOP only; a group signal from outside passes it by and hits the command, which is
in its group and session.  When the command ends it ends, and with it everything inside.  It stays out of
reach of what it starts: not dumpable, and in the end without any capability.

Its starter learns how it goes from a pipe: RUNNING once the command runs or FAILED with the reason, and at
the end ENDED with the command's wait status.  Nothing is imported once the view is entered.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import fcntl
import os
import struct

from execserver.protocol.errors import os_error_text, strerror
from execserver.sandbox import landlock, landlock_view, privileges, seccomp
from execserver.sandbox.namespaces import limits_of
from execserver.sandbox.prepared import PreparedView, can_be_prepared
from execserver.sandbox.view import ViewFailed, enter_view
from execserver.zygote.first_steps import EVERY_SIGNAL, say_who, tie_to_starter
from execserver.zygote.libc import c_strings
from execserver.zygote.lookup import env_value, pipe_candidates
from execserver.zygote.spawn import first_that_runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.namespaces import Identity
    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.libc import Libc

RUNNING = b"R"
FAILED = b"F"  # then the reason
ENDED = b"E"  # then WAIT_STATUS
WAIT_STATUS = struct.Struct("=i")

EXIT_NOT_PREPARED = 1
EXIT_NOT_EXECUTED = 101  # the wire contract's status when there is no such program in the view
_NAME = "codex-linux-sandbox"  # who the contract's messages come from

_REPORT = 3
KEPT = 4
_REASON_BYTES = 3072  # below what a pipe takes as a whole
_SIGHUP = 1
_SIGCONT = 18
_SIGCHLD = 17
_FROM_KERNEL = 0x80

# What comes from outside, to a group or to the leader of the session; not what a fault of our own would send.
_AWAITED = tuple(number for number in EVERY_SIGNAL if number not in (4, 5, 7, 8, 9, 11, 19))


class Command:
    """What to start in the view: `stdio` are three descriptors (the first may be None: the null device).

    With `slave` set, the path of a pty's slave, that is stdio and the controlling terminal instead.
    """

    __slots__ = ("arg0", "argv", "cwd", "env", "ready", "slave", "stdio")

    def __init__(
        self,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        cwd: bytes,
        arg0: bytes | None = None,
        stdio: Sequence[int | None] = (0, 1, 2),
        slave: bytes = b"",
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.arg0 = arg0
        self.stdio = stdio
        self.slave = slave
        self.ready: tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]] | None = None

    def make_ready(self) -> None:
        """Put together what the C library takes, before the fork that uses it."""
        argv = self.argv if self.arg0 is None else [self.arg0, *self.argv[1:]]
        candidates = pipe_candidates(self.argv[0], env_value(self.env, b"PATH"))
        # For the C library calls these stand for the sequences that they were made of.
        self.ready = candidates, c_strings(argv), c_strings(self.env)  # type: ignore[assignment]


class Setup:
    """What the first process of a sandbox needs to become one.

    `identity` is None without a user namespace of its own; `extra` are mounts on top of the plan's;
    `prepared` is the plan's view as `prepare` returns it.  The process is `filtered` if it has inherited the
    plan's filter.
    """

    __slots__ = ("extra", "filtered", "identity", "kernel", "plan", "prepared", "report")

    def __init__(
        self,
        kernel: Kernel,
        plan: ViewPlan,
        identity: Identity | None,
        report: int,
        extra: Sequence[Mount] = (),
        prepared: PreparedView | None = None,
        filtered: bool = False,
    ) -> None:
        self.kernel = kernel
        self.plan = plan
        self.identity = identity
        self.report = report
        self.extra = extra
        self.prepared = prepared
        self.filtered = filtered


def prepare(
    kernel: Kernel,
    plan: ViewPlan,
    identity: Identity,
    filtered: bool = False,
    settings: Sequence[bytes] | None = None,
    keeping: bool = False,
) -> PreparedView | None:
    """Return the way into the view of a plan, for commands that have a user namespace; None if there is none.

    It is for processes that have inherited the plan's filter if `filtered`, else for those that have not;
    with `keeping` for those that find a descriptor as KEPT.  `settings` is as `settings_of_host` returns it:
    where that is unknown, a new /proc is mostly refused, too.
    """
    if settings is None or not can_be_prepared(kernel, plan):
        return None
    version = landlock.abi(kernel)
    privileges.capabilities(kernel)
    limits = limits_of(identity)
    try:
        return PreparedView(
            kernel,
            plan,
            limits,
            settings,
            (KEPT if keeping else _REPORT) + 1,
            tie_to_starter,
            lambda kernel: say_who(kernel, identity, _REPORT),
            lambda kernel: _give_up(kernel, plan, version, filtered=filtered),
        )
    except (OSError, ViewFailed):
        return None  # the kernel lacks a call; who builds with care tells


def run_command(
    setup: Setup,
    libc: Libc,
    command: Command,
    before: Adjust | None = None,
    kept: int = -1,
    start: StartProgram | None = None,
) -> None:
    """Be the first process of a sandbox until the command ends; never returns.

    `before` is called in the new namespaces, with all privileges there, and returns the environment to use.
    `start` starts the command in place of a plain spawn, and finds the descriptor `kept` as KEPT.
    """
    status = EXIT_NOT_PREPARED
    try:
        env = _enter(setup, command, before, kept)
        if command.stdio[0] is None and not command.slave:
            _open_null(0)  # the view's own: the one of outside is a file of another root
        child = _start(command, env, start or libc.spawn_in_session)
        os.write(_REPORT, RUNNING)
        for number in (0, 1, 2) if kept < 0 else (0, 1, 2, KEPT):
            os.close(number)
        ended = _reap_until(child) if child > 0 else -child << 8
        os.write(_REPORT, ENDED + WAIT_STATUS.pack(ended))
        status = 0
    except (OSError, ViewFailed) as error:
        _tell_failure(setup.report, error)
    finally:
        os._exit(status)


def _enter(setup: Setup, command: Command, before: Adjust | None, kept: int) -> Sequence[bytes]:
    """Come to stand in the view with nothing but stdio, report and what is kept; return the variables."""
    if setup.prepared is not None and setup.identity is not None and before is None:
        setup.prepared.tie()
        take_stdio(command)
        _place_report(setup, kept)
        if not setup.prepared.enter(command.slave, setup.extra):
            _confine(setup, command.slave)
        return command.env
    _begin(setup)
    env = command.env if before is None else before(command.env)
    take_stdio(command)
    _take_report(setup, kept)
    _confine(setup, command.slave)
    return env


def run_worker(setup: Setup, kept: int, serve: Callable[[int], None]) -> None:
    """Be a sandbox's only process and call `serve` with the descriptor `kept`; never returns."""
    status = EXIT_NOT_PREPARED
    try:
        _begin(setup)
        for number in (0, 1, 2):
            _open_null(number)
        _take_report(setup, kept)
        _confine(setup, b"", files_too=True)
        os.write(_REPORT, RUNNING)
        os.close(_REPORT)
        serve(KEPT)
        status = 0
    except (OSError, ViewFailed) as error:
        _tell_failure(setup.report, error)
    finally:
        os._exit(status)


def run_function(setup: Setup, function: Callable[[], int]) -> None:
    """Call a function inside the view, with this process's stdio; never returns, its result is the status."""
    status = EXIT_NOT_PREPARED
    try:
        _begin(setup)
        _take_report(setup)
        _confine(setup, b"", files_too=True)
        os.write(_REPORT, RUNNING)
        os.close(_REPORT)
        status = function()
    except (OSError, ViewFailed) as error:
        _tell_failure(setup.report, error)
    finally:
        os._exit(status)


def _begin(setup: Setup) -> None:
    tie_to_starter(setup.kernel)
    say_who(setup.kernel, setup.identity, setup.report)


def take_stdio(command: Command) -> None:
    """Put the command's stdio in place, and its terminal, if it has one; the process leads its session."""
    if command.slave:
        # No O_NOCTTY: in the new session this open is what makes it the controlling terminal.
        terminal = os.open(command.slave, os.O_RDWR)
        stdio: Sequence[int | None] = (terminal, terminal, terminal)
    else:
        stdio = command.stdio
    for number, descriptor in enumerate(stdio):
        if descriptor is None:
            _open_null(number)
        elif descriptor == number:
            os.set_inheritable(number, True)
        else:
            os.dup2(descriptor, number)


def _open_null(number: int) -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, number)
    os.close(null)


def _take_report(setup: Setup, kept: int = -1) -> None:
    """Move what is needed to fixed numbers and close everything else."""
    _place_report(setup, kept)
    privileges.close_from(setup.kernel, (KEPT if kept >= 0 else _REPORT) + 1)


def _place_report(setup: Setup, kept: int) -> None:
    if kept >= 0:
        # Out of the way of both numbers first.
        setup.report, kept = _above(setup.report), _above(kept)
        os.dup2(kept, KEPT, inheritable=False)
    if setup.report != _REPORT:
        os.dup2(setup.report, _REPORT, inheritable=False)
    setup.report = _REPORT


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)


def _confine(setup: Setup, console: bytes, files_too: bool = False) -> None:
    """Enter the view and give up every privilege for good."""
    kernel, plan = setup.kernel, setup.plan
    version = landlock.abi(kernel)
    # Either bars the way into processes outside, of the same user and without capabilities even.
    barred = setup.identity is not None or version >= landlock.SCOPED_ABI
    enter_view(kernel, plan, setup.extra, console, limits_of(setup.identity), barred)
    _give_up(kernel, plan, version, files_too, setup.filtered)


def _give_up(
    kernel: Kernel, plan: ViewPlan, version: int, files_too: bool = False, filtered: bool = False
) -> None:
    files_too = files_too and version >= landlock.LEAST_ABI_IN_VIEW
    rules = None if files_too else landlock_view.command_rules(kernel, version, plan, _REPORT)
    privileges.drop_capabilities(kernel)
    privileges.no_new_privileges(kernel)
    if files_too:
        landlock.restrict_files(kernel, version, plan)
    elif rules is not None:
        landlock.restrict(kernel, rules)
    if not filtered:
        seccomp.install(kernel, plan.syscall_filter)


def _start(command: Command, env: Sequence[bytes], start: StartProgram) -> int:
    """Start the command; return its pid, or minus the status of a command that cannot be started."""
    try:
        os.chdir(command.cwd)
    except OSError as error:
        complain(f"Can't chdir to {os.fsdecode(command.cwd)}: {strerror(error.errno or errno.EIO)}")
        return -EXIT_NOT_PREPARED
    return start_program(command, env, start)


def start_program(command: Command, env: Sequence[bytes], start: StartProgram) -> int:
    """Start the first file that execvp would; return what `start` does, or minus the status of a failure."""
    program = command.argv[0]
    argv = command.argv if command.arg0 is None else [command.arg0, *command.argv[1:]]
    try:
        if command.ready is not None and env is command.env:
            candidates, *strings = command.ready
            return first_that_runs(candidates, lambda path: start(path, *strings))
        candidates = pipe_candidates(program, env_value(env, b"PATH"))
        return first_that_runs(candidates, lambda path: start(path, argv, env))
    except OSError as error:
        complain(f"Failed to execvp {os.fsdecode(program)}: {os_error_text(error.errno or errno.EIO)}")
        return -EXIT_NOT_EXECUTED


def complain(text: str) -> None:
    """Write a message in the contract's form to stderr."""
    try:
        os.write(2, os.fsencode(f"{_NAME}: {text}\n"))
    except OSError:
        pass  # nobody listens


def _reap_until(child: int) -> int:
    """Reap everything that ends until the command does; return its wait status."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return status
        if pid == 0:
            info = _signal.sigwaitinfo(_AWAITED)
            if info.si_signo != _SIGCHLD:
                _pass_on(info.si_signo, info.si_code == _FROM_KERNEL, info.si_pid, child)


def _pass_on(signum: int, from_kernel: bool, sender: int, child: int) -> None:
    """Pass a signal on that reached this process and should have reached the command, too."""
    try:
        if from_kernel:
            if signum == _SIGHUP:
                # The terminal is gone: the kernel tells the leader of the session, which is this process.
                os.kill(child, _SIGHUP)
                os.kill(child, _SIGCONT)
        elif sender == 0 and os.getpgid(child) != os.getpgrp():
            # From outside, to the group: which a shell with job control has left for one of its own.
            os.killpg(os.getpgid(child), signum)
    except OSError:
        pass  # it ends just now


def _tell_failure(report: int, error: OSError | ViewFailed) -> None:
    if isinstance(error, OSError):
        call = f" ({error.filename})" if isinstance(error.filename, str) else ""
        reason = f"{error.strerror}{call}"
    else:
        reason = str(error)
    try:
        os.write(report, FAILED + os.fsencode(reason)[:_REASON_BYTES])
    except OSError:
        pass  # the starter is gone, or sees the end of the pipe


if TYPE_CHECKING:
    Adjust = Callable[[Sequence[bytes]], Sequence[bytes]]
    StartProgram = Callable[[bytes, Sequence[bytes], Sequence[bytes]], int]
