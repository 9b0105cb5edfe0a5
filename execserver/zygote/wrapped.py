"""Sandboxes that bubblewrap makes, where namespaces are refused to us but not to it.

A command gets a guard: a fork of the zygote that is leader of the session, starts bubblewrap in a process
group of its own, and passes signals on to the group of the command, whose number only bubblewrap knows.  The
guard reports like the first process of a view of our own.  A file worker is this program, exec'ed by
bubblewrap inside the view, since a fork cannot get there.

A command's last step is the stage (`sandbox/stage.py`): it takes on the rules of Landlock under which
bubblewrap could not have mounted.

Bubblewrap itself runs without any variable of the request and is executed by descriptor, after a look whether
it is still the file that was tried.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import errno
import fcntl
import os
import select
import stat

from execserver.protocol.errors import strerror
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox import bwrap, landlock, landlock_view, mounts, privileges, seccomp
from execserver.sandbox.limits import leave_descriptors_to_others
from execserver.sandbox.mounts import NewMounts
from execserver.sandbox.mounts_old import OldMounts
from execserver.sandbox.plan import FILTER_NONE, READ, ROOT_EMPTY, WRITE, PlanRefused
from execserver.sandbox.stage import Stage, reserve
from execserver.zygote.init import ENDED, FAILED, KEPT, RUNNING, WAIT_STATUS, take_stdio
from execserver.zygote.lookup import env_value, pipe_candidates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.bwrap import Bwrap
    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.init import Command

WORKER_ARGUMENT = "--execserver-fs-worker"

_REPORT = 3
_FAILED_STATUS = 1
_STATUS_BYTES = 4096
_SIGCHLD = 17
# Of all signals a guard waits for, those that are not its own business.
_EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))
_NOT_PASSED_ON = (_SIGCHLD, _signal.SIGTTIN, _signal.SIGTTOU)


class Wrapper:
    """One use of bubblewrap in a forked child: opens what it needs, all on inheritable descriptors."""

    def __init__(self, kernel: Kernel, program: Bwrap, plan: ViewPlan) -> None:
        self._kernel = kernel
        self._bwrap = program
        self._plan = plan
        self._mounts = NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)

    def command_line(self, command: Command, covers: Sequence[Mount], status: int) -> list[bytes]:
        """Return the arguments for a command; `status` is the descriptor bubblewrap tells about it on."""
        view = self._view(covers, ())
        staged = self._staged(command)
        arg0 = None if staged else command.arg0
        options = bwrap.command_arguments(view, self._bwrap, cwd=command.cwd, env=command.env, arg0=arg0)
        options += [b"--json-status-fd", b"%d" % status]
        return self._line(options, staged or command.argv)

    def worker_line(self, argv: Sequence[bytes], readable: Sequence[bytes]) -> list[bytes]:
        """Return the arguments for a file worker, which needs some trees itself."""
        return self._line([*self._view((), readable), b"--chdir", b"/"], argv)

    def program(self) -> bytes:
        """Return a path that executes bubblewrap itself, whatever lies at its path by then.

        Raises OSError ESTALE when it is not the file any more that was tried.
        """
        opened = os.open(self._bwrap.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        if bwrap.identity_of(os.fstat(opened)) != self._bwrap.identity:
            raise OSError(errno.ESTALE, "bubblewrap is not the file any more that was tried", None)
        return b"/proc/self/fd/%d" % opened

    def _staged(self, command: Command) -> list[bytes]:
        """Return the command as arguments of the stage; nothing where no rules are to be taken on."""
        kernel, plan = self._kernel, self._plan
        version = landlock.abi(kernel)
        if not landlock_view.closes_fifos(version, plan):
            return []
        ruleset = landlock_view.rules_to_inherit(kernel, version, plan, _REPORT, self._open_source)
        program, own = command.argv[0], reserve()
        try:
            # The last of a name, as `--setenv` leaves it.
            candidates = pipe_candidates(program, env_value(command.env[::-1], b"PATH"))
        except OSError:
            candidates = [program]  # it has no such name, and the kernel says so
        stage = Stage(landlock_view.RULES_OF_THE_VIEW, candidates, program)
        _write(own, stage.image(kernel.machine, ruleset, own))
        shown = program if command.arg0 is None or not self._bwrap.argv0 else command.arg0
        return [b"/proc/self/fd/%d" % own, shown, *command.argv[1:]]

    def _view(self, covers: Sequence[Mount], readable: Sequence[bytes]) -> list[bytes]:
        if not self._bwrap.bind_fd:
            for mount in (*self._plan.mounts, *covers):
                if mount.kind in (READ, WRITE):
                    os.close(self._open_source(mount))
        return bwrap.view_arguments(
            self._plan,
            self._bwrap,
            covers=covers,
            extra_readable=readable,
            settings=_settings_of_the_system(),
            open_source=self._open_source,
        )

    def _line(self, options: list[bytes], argv: Sequence[bytes]) -> list[bytes]:
        if self._plan.syscall_filter != FILTER_NONE:
            code = seccomp.program(seccomp.rules_of(self._plan.syscall_filter), self._kernel.machine)
            options += [b"--seccomp", b"%d" % _memory(code)]
        bwrap.check_count(options, argv)
        joined = b"".join(option + b"\0" for option in options)
        return [bwrap.PROGRAM, b"--args", b"%d" % _memory(joined), b"--", *argv]

    def _open_source(self, mount: Mount) -> int:
        """Open what a mount binds, by a path without links, and see that it still is what was planned."""
        opened = self._mounts.open_source(mount.source)
        found = os.fstat(opened)
        if mount.identity not in (None, (found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode))):
            raise OSError(errno.ESTALE, "it is not what it was when the policy was resolved", None)
        os.set_inheritable(opened, True)
        return opened


def programs_before(kernel: Kernel, plan: ViewPlan) -> int:
    """Return how many programs of ours are executed before a command: bubblewrap, and perhaps the stage."""
    return 2 if landlock_view.closes_fifos(landlock.abi(kernel), plan) else 1


def guard_command(
    kernel: Kernel,
    program: Bwrap,
    plan: ViewPlan,
    command: Command,
    covers: Sequence[Mount],
    report: int,
    kept: int = -1,
    watch: Callable[[], None] | None = None,
) -> None:
    """Be the guard of a command until it ends; never returns.

    `watch` is called before bubblewrap is started, and finds the descriptor `kept` as KEPT.
    """
    status = _FAILED_STATUS
    try:
        _begin(kernel, report)
        take_stdio(command)
        report = _keep_only(kernel, report, kept)
        if watch is not None:
            watch()
        wrapper = Wrapper(kernel, program, plan)
        told, tells = os.pipe2(os.O_CLOEXEC)
        os.set_inheritable(tells, True)
        line = wrapper.command_line(command, covers, tells)
        leave_descriptors_to_others()
        child = os.posix_spawn(
            wrapper.program(), line, {}, setpgroup=0, setsigmask=(), setsigdef=_EVERY_SIGNAL
        )
        os.close(tells)
        first = os.read(told, _STATUS_BYTES)
        os.write(report, RUNNING)
        for number in (0, 1, 2) if kept < 0 else (0, 1, 2, KEPT):
            os.close(number)
        ended = _wait_for(child, _number_after(b'"child-pid":', first))
        os.write(report, ENDED + WAIT_STATUS.pack(_true_status(ended, first + _rest(told))))
        status = 0
    except (OSError, PlanRefused) as error:
        _tell_failure(report, error)
    finally:
        os._exit(status)


def become_worker(
    kernel: Kernel, program: Bwrap, plan: ViewPlan, record: bytes, socket: int, report: int
) -> None:
    """Become bubblewrap that becomes a file worker on a socket; never returns.

    Descriptor 2 is the report: bubblewrap complains there, or the worker says that it runs.
    """
    try:
        _begin(kernel, report)
        paths = ExecServerRuntimePaths.detect()
        wrapper = Wrapper(kernel, program, plan)
        numbers = [socket, _memory(record)]
        os.set_inheritable(socket, True)
        argv = paths.command(WORKER_ARGUMENT, *(str(number) for number in numbers))
        readable = [os.fsencode(folder) for folder in paths.program_folders()]
        line = wrapper.worker_line(argv, readable if plan.root == ROOT_EMPTY else ())
        path = wrapper.program()
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(report, 2)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        os.execve(path, line, {})
    except (OSError, PlanRefused) as error:
        _tell_failure(report, error)
    finally:
        os._exit(_FAILED_STATUS)


def _begin(kernel: Kernel, report: int) -> None:
    privileges.die_with_parent(kernel)
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        os._exit(_FAILED_STATUS)  # the starter is gone already
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _EVERY_SIGNAL)
    os.setsid()
    privileges.leave_session_keyring(kernel)


def _keep_only(kernel: Kernel, report: int, kept: int) -> int:
    """Close everything but stdio, the report, whose new number is returned, and what is kept as KEPT."""
    if kept >= 0:
        # Out of the way of both numbers first.
        report = fcntl.fcntl(report, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)
        kept = fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)
        os.dup2(kept, KEPT, inheritable=False)
    if report != _REPORT:
        os.dup2(report, _REPORT, inheritable=False)
    privileges.close_from(kernel, _REPORT + 1 if kept < 0 else KEPT + 1)
    return _REPORT


def _wait_for(child: int, group: int) -> int:
    """Pass signals on to the command's group until bubblewrap has ended; return its wait status."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        number = _signal.sigwaitinfo(_EVERY_SIGNAL).si_signo
        if number not in _NOT_PASSED_ON and group > 1:
            try:
                os.killpg(group, number)
            except OSError:
                pass  # it has ended


def _true_status(status: int, told: bytes) -> int:
    """Return the command's wait status: an exit that bubblewrap did not see is its own failure."""
    return status if b'"exit-code"' in told else _FAILED_STATUS << 8


def _settings_of_the_system() -> list[bytes]:
    """Return what in /proc is no process and could be written to, by user 0 at least."""
    return [
        os.fsencode(entry.path)
        for entry in os.scandir("/proc")
        if not entry.name.isdigit() and not entry.is_symlink()
        if entry.is_dir() or entry.stat().st_mode & 0o222
    ]


def _rest(told: int) -> bytes:
    data = b""
    while True:
        piece = os.read(told, _STATUS_BYTES)
        if not piece:
            return data
        data += piece


def _number_after(name: bytes, text: bytes) -> int:
    digits = text.partition(name)[2].strip().partition(b",")[0].rstrip(b" }\n")
    return int(digits) if digits.isdigit() else 0


def _memory(content: bytes) -> int:
    """Return an inheritable descriptor that reads as this content."""
    descriptor = os.memfd_create("execserver", 0)
    _write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _tell_failure(report: int, error: OSError | PlanRefused) -> None:
    if isinstance(error, OSError):
        reason = error.strerror or strerror(error.errno or errno.EIO)
    else:
        reason = str(error)
    try:
        os.write(report, FAILED + os.fsencode(f"bubblewrap: {reason}")[:3000])
    except OSError:
        pass  # the starter is gone, or sees the end of the pipe
