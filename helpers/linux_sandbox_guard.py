"""Runs a confined command so that no placeholder outlives it, whichever of its processes is killed.

Two processes look after a view that needs placeholders: the one the caller started, and a guard that owns
them and the view.  The first passes signals on and, when the guard is killed, waits for the end of the view
and cleans.  The guard, when the first is killed, ends the view and then cleans as always.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import os

from execserver.sandbox.placeholder_cleaning import clean
from execserver.sandbox.placeholder_files import PlaceholderError
from execserver.sandbox.placeholder_records import record_places, state_folder
from execserver.sandbox.placeholders import Placeholders
from execserver.sandbox.plan import READ, Mount
from execserver.sandbox.syscalls import Kernel
from execserver.sandbox.view import ViewFailed
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.placeholders import Lease
    from execserver.sandbox.plan import ViewPlan

    Run = Callable[[Sequence[Mount]], int]

_PR_SET_PDEATHSIG = 1
_SIGCHLD = 17
_PASSED_ON = (1, 2, 3, 15)
PARENT_DIED = _signal.SIGUSR1  # upon it the view is ended


def run_guarded(plan: ViewPlan, runtime_dir: bytes | None, run: Run, failed: Callable[[str], int]) -> int:
    """Call `run` with the mounts that cover missing paths, in a guard; return the exit status it returns.

    Where they cannot be covered, and for a ViewFailed of `run`, the status is what `failed` returns for the
    reason.
    """
    libc, kernel, parent = Libc(), Kernel(), os.getpid()
    libc.set_child_subreaper()  # what a killed guard leaves must be waited for
    folder, places = state_folder(runtime_dir), record_places(runtime_dir)
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (*_PASSED_ON, _SIGCHLD, PARENT_DIED))
    guard = os.fork()
    if guard == 0:
        status = 1
        try:
            os.setsid()  # signals of the terminal reach it through the first process only
            kernel.call("prctl", _PR_SET_PDEATHSIG, PARENT_DIED)
            if os.getppid() == parent:
                status = _guard(plan, folder, places, run, failed)
        finally:
            os._exit(status)
    try:
        status, killed = _wait(guard)
        if killed and folder is not None:
            _wait_for_the_rest()
            clean(folder, places)
        return status
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _guard(
    plan: ViewPlan,
    folder: bytes | None,
    places: Sequence[bytes],
    run: Run,
    failed: Callable[[str], int],
) -> int:
    owner = Placeholders(folder, places)
    if folder is not None:
        clean(folder, places)
    try:
        lease = owner.acquire(plan)
        try:
            return run(_covers(lease))
        finally:
            owner.release(lease)
    except (PlaceholderError, ViewFailed) as error:
        return failed(str(error))
    finally:
        owner.close()


def _covers(lease: Lease) -> list[Mount]:
    # The lease holds them in the order of the missing paths.
    return [
        Mount(READ, missing.path, missing.path, held.identity)
        for missing, held in zip(lease.covered, lease.held, strict=False)
    ]


def _wait(guard: int) -> tuple[int, bool]:
    """Pass signals on until the guard ends; return its exit status and whether it was killed."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1, True
        if ended == guard:
            code = os.waitstatus_to_exitcode(status)
            return (code, False) if code >= 0 else (128 - code, True)
        if ended == 0:
            signum = _signal.sigwaitinfo((*_PASSED_ON, _SIGCHLD)).si_signo
            if signum != _SIGCHLD:
                os.kill(guard, signum)


def _wait_for_the_rest() -> None:
    """Reap what a killed guard left: the view ends with its guard."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return
