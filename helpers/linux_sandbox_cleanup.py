"""Runs a confined command so that no mask target survives it, whichever of its processes is killed.

Two processes look after a sandbox that needs mask targets: the one that the caller started, and a cleanup
monitor, which owns the mask targets and the sandbox.  The first passes signals on.  When the monitor is
killed, it waits for the end of the sandbox and cleans up.  When the first process is killed, the monitor ends
the sandbox and cleans up as always.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import os

from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.masks.covers import covers_of
from execserver.sandbox.masks.files import MaskTargetError
from execserver.sandbox.masks.records import record_places, state_folder
from execserver.sandbox.masks.stale import clean
from execserver.sandbox.masks.targets import MaskTargets
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, SandboxPlan

    Run = Callable[[Sequence[Mount]], int]

_SIGCHLD = 17
_PASSED_ON = (1, 2, 3, 15)
PARENT_DIED = _signal.SIGUSR1  # the monitor's parent-death signal; it ends the sandbox


def run_monitored(
    plan: SandboxPlan, runtime_dir: bytes | None, run: Run, failed: Callable[[str], int]
) -> int:
    """Call `run`, in a cleanup monitor, with the mounts that mask missing paths; return its exit status.

    Where they cannot be masked, and for a RootFailed of `run`, the status is what `failed` returns for the
    reason.
    """
    libc, kernel, parent = Libc(), Kernel(), os.getpid()
    libc.set_child_subreaper()  # to wait for what a killed monitor leaves
    folder, places = state_folder(runtime_dir), record_places(runtime_dir)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (*_PASSED_ON, _SIGCHLD, PARENT_DIED))
    monitor = os.fork()
    if monitor == 0:
        status = 1
        try:
            os.setsid()  # signals of the terminal must reach it only once, from the first process
            # Not SIGKILL: the monitor has mask targets to remove.
            privileges.die_with_parent(kernel, PARENT_DIED)
            if os.getppid() == parent:
                status = _monitor(plan, folder, places, run, failed)
        finally:
            os._exit(status)
    try:
        status, killed = _wait(monitor)
        if killed and folder is not None:
            # While anything of the sandbox lives, its mask targets are in use.
            _wait_for_the_rest()
            clean(folder, places)
        return status
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _monitor(
    plan: SandboxPlan,
    folder: bytes | None,
    places: Sequence[bytes],
    run: Run,
    failed: Callable[[str], int],
) -> int:
    owner = MaskTargets(folder, places)
    if folder is not None:
        clean(folder, places)  # what earlier mask owners left when both of their processes were killed
    try:
        lease = owner.acquire(plan)
        try:
            return run(covers_of(lease))
        finally:
            owner.release(lease)
    except (MaskTargetError, RootFailed) as error:
        return failed(str(error))
    finally:
        owner.close()


def _wait(monitor: int) -> tuple[int, bool]:
    """Pass signals on until the monitor ends; return its exit status and whether it was killed."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1, True
        if ended == monitor:
            code = os.waitstatus_to_exitcode(status)
            return (code, False) if code >= 0 else (128 - code, True)
        if ended == 0:
            signum = _signal.sigwaitinfo((*_PASSED_ON, _SIGCHLD)).si_signo
            if signum != _SIGCHLD:
                os.kill(monitor, signum)


def _wait_for_the_rest() -> None:
    """Reap what a killed monitor left: the sandbox ends with it."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return
