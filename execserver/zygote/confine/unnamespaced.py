"""Unnamespaced children: they restrict themselves and then become the command.

A filter or Landlock needs no namespaces.  The child restricts itself between fork and exec, and is then the
command itself, the leader of its session as any other.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import os

from execserver.sandbox.kernel.limits import leave_descriptors_to_others
from execserver.zygote.confine import child
from execserver.zygote.confine.back_end import BackEnd
from execserver.zygote.confine.child import EXIT_NOT_PREPARED, KEPT, REPORT
from execserver.zygote.confine.command import start_program, take_stdio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount
    from execserver.zygote.confine.back_end import Host
    from execserver.zygote.confine.child import Become
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confinement import Confinement
    from execserver.zygote.libc import Libc

    Restrict = Callable[[], None]


class Unnamespaced(BackEnd):
    """A back end whose children call `restrict` and then execute the command in the same process."""

    is_quick = True

    def __init__(self, host: Host, confinement: Confinement) -> None:
        self._host = host

    def restrict(self) -> None:
        """Restrict the calling process, which has one thread, for good.

        Raises OSError; then the process must end.
        """
        raise NotImplementedError

    def command(self, command: Command, covers: Sequence[Mount]) -> Become:
        """Return what a fork does to become the command."""
        kernel, libc, restrict = self._host.kernel, self._host.libc, self.restrict
        return lambda report, _: run_command(kernel, libc, command, restrict, report)

    def watched(
        self, command: Command, covers: Sequence[Mount], channel: int, watch: Callable[[], None]
    ) -> Become:
        """Return the same for a watched command."""

        # With a listener there are two filters.  The kernel asks both for each call, and a refusal by that of
        # the sandbox outweighs the listener's verdict to hold the call.
        def restrict() -> None:
            self.restrict()
            watch()

        kernel, libc = self._host.kernel, self._host.libc
        return lambda report, _: run_command(kernel, libc, command, restrict, report, channel)

    def worker(self, socket: int, serve: Callable[[int], None]) -> Become:
        """Return what a fork does to become a file worker."""
        kernel, restrict = self._host.kernel, self.restrict
        return lambda report, _: run_worker(kernel, restrict, socket, serve, report)


def run_command(
    kernel: Kernel, libc: Libc, command: Command, restrict: Restrict, report: int, kept: int = -1
) -> None:
    """Become the command after a call of `restrict`, which finds `kept` as KEPT; never returns.

    The cwd of the process is already that of the command.
    """
    status = EXIT_NOT_PREPARED
    try:
        _begin(kernel, report)
        # Stdio first: `keep_only` takes numbers 3 and 4, and closes what the command's stdio came as.
        take_stdio(command)
        report = child.keep_only(kernel, report, kept)
        child.take_default_signals()
        restrict()
        leave_descriptors_to_others()
        command.limits.apply()
        # Before the exec: nothing of ours runs afterwards that could report.  A program that cannot be
        # executed is a command that ends with the wire contract's status, as in a sandbox root.
        child.tell_running()
        os.close(REPORT)
        # `child.tie` blocked every signal, and an exec would keep that.  Unblocked last, since a pending
        # signal now ends the process.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        status = -start_program(command, command.env, libc.execute)
    except OSError as error:
        _tell_failure(report, error)
    finally:
        os._exit(status)


def run_worker(
    kernel: Kernel, restrict: Restrict, socket: int, serve: Callable[[int], None], report: int
) -> None:
    """Call `restrict` and then `serve` with the number of the socket; never returns."""
    try:
        _begin(kernel, report)
        for number in (0, 1, 2):
            child.open_null(number)
        report = child.keep_only(kernel, report, socket)
        restrict()
        child.tell_running()
        os.close(REPORT)
        serve(KEPT)
    except OSError as error:
        _tell_failure(report, error)
    finally:
        os._exit(EXIT_NOT_PREPARED)


def run_function(kernel: Kernel, restrict: Restrict, function: Callable[[], int], report: int) -> None:
    """Call `restrict` and then a function, with this process's stdio; never returns.

    The function's result is the exit status.
    """
    status = EXIT_NOT_PREPARED
    try:
        _begin(kernel, report)
        report = child.keep_only(kernel, report)
        restrict()
        child.tell_running()
        os.close(REPORT)
        status = function()
    except OSError as error:
        _tell_failure(report, error)
    finally:
        os._exit(status)


def _begin(kernel: Kernel, report: int) -> None:
    child.tie(kernel)
    child.check_starter(kernel, report)


def _tell_failure(report: int, error: OSError) -> None:
    child.tell_failure(report, os.fsencode(error.strerror or "unknown error"))
