"""The sandbox init: it builds the sandbox root, gives up all privileges, starts the command and reaps.

It is a fork of the zygote, of the filter template or of a helper, and runs nothing but this code.  It leads
session and process group, and the command is in both.  A group signal from outside reaches the command and
passes init by: for pid 1 of a namespace the kernel acts on SIGKILL and SIGSTOP only.  When the command ends,
init ends, and with it everything inside; behind a supervised shell it stays until the supervisor, which gives
others time to write to the shell's outputs, kills it.  What it starts cannot get at it: it is not dumpable
and has no capability in the end.

It reports to its starter as `child` describes.  Nothing is imported once the sandbox root is entered.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import os

from execserver.protocol.errors import strerror
from execserver.sandbox.kernel import landlock, privileges, seccomp
from execserver.sandbox.kernel.namespaces import limits_of, map_own_ids
from execserver.sandbox.rootfs import landlock_rules
from execserver.sandbox.rootfs.builder import RootFailed, enter_root
from execserver.sandbox.rootfs.recorded import RecordedRoot, can_be_recorded
from execserver.zygote.confine import child
from execserver.zygote.confine.child import EVERY_SIGNAL, EXIT_NOT_PREPARED, KEPT, REPORT
from execserver.zygote.confine.command import complain, start_program, take_stdio
from execserver.zygote.confine.workdir import enter_workdir, real_workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.namespaces import Identity
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.command import Command, StartProgram
    from execserver.zygote.libc import Libc

_SIGHUP = 1
_SIGCONT = 18
_SIGCHLD = 17
_FROM_KERNEL = 0x80

# What may come from outside, to the group or to the session leader.  Left out are SIGKILL, SIGSTOP and the
# signals of faults (4, 5, 7, 8, 11): a fault of our own must end this process, not be waited for.
_AWAITED = tuple(number for number in EVERY_SIGNAL if number not in (4, 5, 7, 8, 9, 11, 19))


class Setup:
    """What a process needs to become a sandbox init.

    `identity` is None without a user namespace of its own; `extra` are mounts on top of the plan's;
    `prepared` is the recorded sandbox root, as `prepare` returns it.  The process is `filtered` if it has
    inherited the plan's seccomp filter.
    """

    __slots__ = ("extra", "filtered", "identity", "kernel", "plan", "prepared", "report")

    def __init__(
        self,
        kernel: Kernel,
        plan: SandboxPlan,
        identity: Identity | None,
        report: int,
        extra: Sequence[Mount] = (),
        prepared: RecordedRoot | None = None,
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
    plan: SandboxPlan,
    identity: Identity,
    filtered: bool = False,
    settings: Sequence[bytes] | None = None,
    keeping: bool = False,
) -> RecordedRoot | None:
    """Record the system calls that build the sandbox root of a plan, for commands with a user namespace.

    The record is for processes that have inherited the plan's filter if `filtered`, else for others; with
    `keeping` for those that find a descriptor as KEPT.  `settings` is what `settings_of_host` returns.

    Return None where nothing can be recorded; the slow path serves then.
    """
    # Where the host's settings are unknown, the kernel mostly refuses a new /proc, too.
    if settings is None or not can_be_recorded(kernel, plan):
        return None
    # Asked before the recording, which takes every call for a success: probing calls, some of which are meant
    # to fail, would become steps of it.  The number of capabilities is remembered in `kernel`.
    version = landlock.abi(kernel)
    privileges.capabilities(kernel)
    limits = limits_of(identity)
    try:
        return RecordedRoot(
            kernel,
            plan,
            limits,
            settings,
            (KEPT if keeping else REPORT) + 1,
            child.tie,
            lambda kernel: _say_who(kernel, identity, REPORT),
            lambda kernel: _give_up(kernel, plan, version, filtered=filtered),
        )
    except (OSError, RootFailed):
        return None  # the kernel lacks a call; the slow path reports it


def run_command(
    setup: Setup,
    libc: Libc,
    command: Command,
    before: Before | None = None,
    kept: int = -1,
    start: StartProgram | None = None,
) -> None:
    """Be the sandbox init until the command ends; never returns.

    `before` is called in the new namespaces, with all privileges there; it may raise OSError.
    `start` starts the command in place of a plain spawn, and finds the descriptor `kept` as KEPT.
    """
    status = EXIT_NOT_PREPARED
    try:
        real = real_workdir(command.cwd)
        _enter(setup, command, before, kept)
        if command.stdio[0] is None and not command.slave:
            # The null device of the sandbox root: the one opened outside is a file of another root.
            child.open_null(0)
        pid = _start(command, real, start or _starting(libc, command))
        if pid > 0:
            child.tell_running()
        # The command has its stdio.  Copies in init would keep the pipes open after it has closed its own.
        for number in (0, 1, 2) if kept < 0 else (0, 1, 2, KEPT):
            os.close(number)
        if pid > 0:
            # Reported as ENDED, since an exit status of init cannot say which signal ended the command.  The
            # starter uses it once init is reaped; by then the kernel has killed all that was left inside.
            ended = _reap_until(pid)
            if kept >= 0 and _are_others_left():
                child.tell_left(ended)
                _reap_the_rest()
            child.tell_ended(ended)
        else:
            child.tell_unstarted(-pid)
        status = 0
    except (OSError, RootFailed) as error:
        child.tell_failure(setup.report, _reason_of(error))
    finally:
        os._exit(status)


def _enter(setup: Setup, command: Command, before: Before | None, kept: int) -> None:
    """Enter the sandbox root with no descriptors but stdio, report and KEPT."""
    # The fast path: replaying recorded calls touches far less memory than the code that made them, and a
    # fork pays for each page that it touches.
    if setup.prepared is not None and setup.identity is not None:
        setup.prepared.tie()
        if before is not None:
            before()
        # Stdio first: `place` takes numbers 3 and 4, which descriptors of the command may have.
        take_stdio(command)
        setup.report = child.place(setup.report, kept)
        if not setup.prepared.enter(command.slave, setup.extra):
            # Something was not as recorded, and what was built is gone again.  The slow path copes with it,
            # or raises the reason.
            _confine(setup, command.slave)
        return
    _begin(setup)
    if before is not None:
        before()
    take_stdio(command)
    setup.report = child.keep_only(setup.kernel, setup.report, kept)
    _confine(setup, command.slave)


def run_worker(setup: Setup, kept: int, serve: Callable[[int], None]) -> None:
    """Be the only process of a sandbox and call `serve` with the descriptor `kept`; never returns."""
    status = EXIT_NOT_PREPARED
    try:
        _begin(setup)
        for number in (0, 1, 2):
            child.open_null(number)
        setup.report = child.keep_only(setup.kernel, setup.report, kept)
        _confine(setup, b"", files_too=True)
        child.tell_running()
        os.close(REPORT)
        serve(KEPT)
        status = 0
    except (OSError, RootFailed) as error:
        child.tell_failure(setup.report, _reason_of(error))
    finally:
        os._exit(status)


def run_function(setup: Setup, function: Callable[[], int]) -> None:
    """Call a function in the sandbox root, with this process's stdio; never returns.

    The function's result is the exit status.
    """
    status = EXIT_NOT_PREPARED
    try:
        _begin(setup)
        setup.report = child.keep_only(setup.kernel, setup.report)
        _confine(setup, b"", files_too=True)
        child.tell_running()
        os.close(REPORT)
        status = function()
    except (OSError, RootFailed) as error:
        child.tell_failure(setup.report, _reason_of(error))
    finally:
        os._exit(status)


def _begin(setup: Setup) -> None:
    child.tie(setup.kernel)
    _say_who(setup.kernel, setup.identity, setup.report)


def _say_who(kernel: Kernel, identity: Identity | None, report: int) -> None:
    """Check that the starter lives, leave its keys, and have its user and group in this namespace, too."""
    child.check_starter(kernel, report)
    # The keys of the login that the server was started from are none of the command's business.
    privileges.leave_session_keyring(kernel)
    if identity is not None:
        # The only moment in which init is dumpable: else the maps in /proc belong to root and not to the
        # user.  At any other time processes of the same user could trace it and open its descriptors.
        map_own_ids(kernel, identity)


def _confine(setup: Setup, console: bytes, files_too: bool = False) -> None:
    """Enter the sandbox root on the slow path, and give up every privilege for good."""
    kernel, plan = setup.kernel, setup.plan
    version = landlock.abi(kernel)
    # The host's /proc may be shown only if one of them closes `/proc/N/root`: root without either could
    # enter processes outside that have no capabilities.
    barred = setup.identity is not None or version >= landlock.SCOPED_ABI
    enter_root(kernel, plan, setup.extra, console, limits_of(setup.identity), barred)
    _give_up(kernel, plan, version, files_too, setup.filtered)


def _give_up(
    kernel: Kernel, plan: SandboxPlan, version: int, files_too: bool = False, filtered: bool = False
) -> None:
    # After all mounts: nobody may mount under Landlock rules for files.  And in this order: without
    # capabilities the kernel demands no_new_privs of whoever takes on Landlock rules or a filter.
    files_too = files_too and version >= landlock.LEAST_ABI_IN_ROOT
    rules = None if files_too else landlock_rules.command_rules(kernel, version, plan, REPORT)
    privileges.drop_capabilities(kernel)
    privileges.no_new_privileges(kernel)
    if files_too:
        landlock.restrict_files(kernel, version, plan)
    elif rules is not None:
        landlock.restrict(kernel, rules)
    if not filtered:
        seccomp.install(kernel, plan.syscall_filter)


def _starting(libc: Libc, command: Command) -> StartProgram:
    """Return what starts the command of an init; its limits are then those of the init, too."""
    own = command.limits
    return lambda path, argv, env: libc.spawn_in_session(path, argv, env, own)


def _start(command: Command, real: bytes, start: StartProgram) -> int:
    """Start the command; return its pid, or minus the status of a command that cannot be started."""
    # The zygote has been in the cwd, but this one is the folder of that name in the sandbox root.
    try:
        env = enter_workdir(command.cwd, real, command.env)
    except OSError as error:
        complain(f"Can't chdir to {os.fsdecode(real)}: {strerror(error.errno or errno.EIO)}")
        return -EXIT_NOT_PREPARED
    return start_program(command, env, start)


def _reap_until(command: int) -> int:
    """Reap everything that ends until the command does; return its wait status."""
    # All signals are blocked.  One that comes between the waitpid and the wait for signals stays pending.
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == command:
            return status
        if pid == 0:
            info = _signal.sigwaitinfo(_AWAITED)
            if info.si_signo != _SIGCHLD:
                _pass_on(info.si_signo, info.si_code == _FROM_KERNEL, info.si_pid, command)


def _are_others_left() -> bool:
    """Reap what has ended; return whether any process of the namespace is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _reap_the_rest() -> None:
    """Reap everything that ends until nothing is left, or the supervisor kills this process."""
    while _are_others_left():
        _signal.sigwaitinfo(_AWAITED)


def _pass_on(signum: int, from_kernel: bool, sender: int, command: int) -> None:
    """Pass on a signal that reached this process and should have reached the command, too."""
    try:
        if from_kernel:
            if signum == _SIGHUP:
                # The terminal is gone.  The kernel signals the session leader only, which is this process,
                # with SIGHUP and then SIGCONT, so that a stopped one gets the first.
                os.kill(command, _SIGHUP)
                os.kill(command, _SIGCONT)
        elif sender == 0 and os.getpgid(command) != os.getpgrp():
            # From outside: a sender there has no pid in this namespace.  It signalled the group, which a
            # shell with job control has left for one of its own.  In the same group the command has got it.
            os.killpg(os.getpgid(command), signum)
    except OSError:
        pass  # it ends just now


def _reason_of(error: OSError | RootFailed) -> bytes:
    if isinstance(error, OSError):
        call = f" ({error.filename})" if isinstance(error.filename, str) else ""
        return os.fsencode(f"{error.strerror}{call}")
    return os.fsencode(str(error))


if TYPE_CHECKING:
    Before = Callable[[], None]
