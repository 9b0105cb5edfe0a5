"""Confined processes where the native back end has failed, for callers without a zygote.

The order is the server's: bubblewrap, Landlock for what it expresses exactly, refusal with blocker and
remedy.  The machine is probed only now, so a user who may make namespaces pays nothing for it.
"""

from __future__ import annotations

import os

from execserver.sandbox.backends.bwrap import PROGRAM
from execserver.sandbox.backends.selection import Refusal, choose
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan_record import PlanRecordError, encode_plan
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.back_end import Host
from execserver.zygote.confine.landlock import Landlock
from execserver.zygote.confine.machine_probe import probe_machine
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.confine.standalone import await_end, exit_status_of, running_child
from execserver.zygote.confine.table import back_end_of
from execserver.zygote.confinement import Confinement
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.backends.report import Report
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.routing import Routing


def run_otherwise(
    plan: SandboxPlan,
    command: Command,
    covers: Sequence[Mount],
    failed: RootFailed,
    search_path: bytes,
    end_signal: int,
    routing: Routing | None = None,
) -> int:
    """Run a command with this process's stdio to its end; return its raw wait status.

    `failed` is why the native back end failed.  With a `routing` its network leads to proxies.  The caller
    blocks the signals that `run_confined` passes on, and `end_signal`.  Raises RootFailed; nothing has run
    then.
    """
    # Bubblewrap runs outside, so it must not come from a folder that the plan lets commands write.
    report = probe_machine(_unwritable(search_path, plan), command.cwd)
    host = _host()
    back_end = back_end_of(host, _chosen(plan, report, failed))
    if routing is not None:
        command.env = routing.env
        back_end.route(routing)
    pid, told = running_child(host.kernel, back_end.command(command, covers), back_end.flags)
    return await_end(pid, told, end_signal)


def call_otherwise(plan: SandboxPlan, function: Callable[[], int], failed: RootFailed) -> int:
    """Call a function in a fork of this process under Landlock; return its result, an exit status.

    Bubblewrap is no choice: the function runs in a fork, which cannot get inside.  Raises RootFailed; nothing
    was called then.
    """
    host = _host()
    back_end = back_end_of(host, _chosen(plan, probe_machine(None, b"/"), failed))
    if not isinstance(back_end, Landlock):
        raise failed
    pid, told = running_child(host.kernel, back_end.function(function), back_end.flags)
    return exit_status_of(pid, told)


def _chosen(plan: SandboxPlan, report: Report, failed: RootFailed) -> Confinement:
    # The failure is judged, not only that there was one: where the probe can make a sandbox root, this plan
    # failed for a reason of its own.  That reason stands, and nothing else is tried.
    if report.native:
        raise failed
    choice = choose(plan, report)
    if isinstance(choice, Refusal):
        raise RootFailed(str(choice))
    try:
        return Confinement(choice.name, encode_plan(plan), choice.record)
    except PlanRecordError as error:
        raise RootFailed(str(error)) from None


def _host() -> Host:
    kernel = Kernel()
    return Host(kernel, Libc(), PlanCache(kernel))


def _unwritable(search_path: bytes, plan: SandboxPlan) -> bytes:
    """Return a search path without folders where an earlier command may have put a program."""
    written = tuple(root.rstrip(b"/") + b"/" for root in plan.writable if root != b"/")
    return b":".join(
        folder
        for folder in search_path.split(b":")
        if not os.path.realpath(os.path.join(folder, PROGRAM)).startswith(written)
    )
