"""The zygote's side of sandboxes: it forks their first processes and keeps what they need.

A start returns once the process is forked.  How it went comes on its report, which the zygote's event loop
watches until the deadline.  Reports, mask leases and proxy bridges are kept by pid until the process is
reaped.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import time
from functools import partial

from execserver.sandbox.kernel import landlock, mounts, privileges, seccomp
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.masks.covers import covers_of
from execserver.sandbox.masks.files import MaskTargetError
from execserver.sandbox.masks.records import record_places, state_folder
from execserver.sandbox.masks.targets import MaskTargets
from execserver.sandbox.plan import NETWORK_PROXY
from execserver.zygote.confine.back_end import Host, refused
from execserver.zygote.confine.child import end_inside, fork_child
from execserver.zygote.confine.command import command_of
from execserver.zygote.confine.compiled_template import CompiledRoots, CompiledTemplate
from execserver.zygote.confine.filter_template import INHERITED, FilterTemplate
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.confine.request import root_failure
from execserver.zygote.confine.routing import through_bridge, to_server
from execserver.zygote.confine.table import back_end_of
from execserver.zygote.groups import descendants
from execserver.zygote.spawn import SpawnFailure, check_deadline, enter_cwd
from execserver.zygote.stages import STAGE_EXEC, STAGE_ROOT
from execserver.zygote.worker import serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.masks.targets import Lease
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.back_end import BackEnd, Start
    from execserver.zygote.confine.child import Report
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest, WorkerRequest
    from execserver.zygote.supervision.start import Supervisors

    # Given the mounts that mask missing paths, returns what forks a child.
    Starter = Callable[[Sequence[Mount]], Start]

_SIGKILL = 9
_MOST_HOLDING = 64  # of three descriptors each, where a zygote may have 1024
_QUICK_MS = 20  # how long others wait at most for a child that hangs, for instance on a network file system


class _Sandbox:
    """What belongs to one sandbox: its report, its mask lease and the way to its proxies.

    `deadline_ns` of the monotonic clock is when its first report is due, 0 for never.
    """

    __slots__ = ("deadline_ns", "lease", "report", "routing")

    def __init__(
        self, report: Report, deadline_ns: int, lease: Lease | None, routing: Routing | None
    ) -> None:
        self.report = report
        self.deadline_ns = deadline_ns
        self.lease = lease
        self.routing = routing


class Sandboxes(Host):
    """All sandboxes of one zygote, which has one thread.

    `runtime_dir` is where mask records belong; `kernel` may stand for an older one; `program` is the path of
    the compiled filter template, if there is one.  Starts raise
    SpawnFailure, with STAGE_ROOT and the reason when no sandbox can be made; nothing runs then.
    """

    def __init__(
        self,
        libc: Libc,
        kernel: Kernel | None = None,
        runtime_dir: bytes | None = None,
        program: bytes = b"",
    ) -> None:
        kernel = kernel or Kernel()
        super().__init__(kernel, libc, PlanCache(kernel))
        self._runtime_dir = runtime_dir
        self._mask_targets: MaskTargets | None = None
        self._sandboxes: dict[int, _Sandbox] = {}  # by pid, until it is reaped
        self._beginning: dict[int, _Sandbox] = {}  # those of them that have not reported yet
        # One filter template per filter, since a seccomp filter costs time to install for every start (0.37
        # ms), and none to inherit.  Not one per plan: so commands share nothing more than without it.
        self._filtered = {name: FilterTemplate(kernel, libc, name) for name in INHERITED}
        self._compiled = {name: CompiledTemplate(kernel, program, name) for name in INHERITED}
        self.compiled_roots = CompiledRoots(PlanCache(kernel, filtered=True))
        self._program = program
        self._supervisors: Supervisors | None = None
        self._warm_up()

    @property
    def pending(self) -> bool:
        """True while mask targets wait to be removed; call `retry` now and then."""
        return self._mask_targets is not None and self._mask_targets.pending

    def retry(self) -> None:
        """Try again to remove mask targets that sandboxes of other mask owners still used."""
        if self._mask_targets is not None:
            self._mask_targets.retry()

    def close(self) -> None:
        """Release everything that is held, once every sandbox has ended."""
        for pid in list(self._sandboxes):
            self.take_end(pid, 0)
        if self._mask_targets is not None:
            self._mask_targets.close()

    def begin(self, request: SpawnRequest, descriptors: Sequence[int], group: int = -1) -> int:
        """Begin to start the command of a request; return the pid that stands for all of it.

        The sandbox is being made as long as there is a `report_of` the pid.  `group` is the descriptor of the
        control group that the command begins in.
        """
        check_deadline(request)
        ends, channel = _apart(request, descriptors)
        if request.supervision:
            back_end, starter, routing = self._supervised(request, ends, channel)
        else:
            back_end = back_end_of(self, request.confinement)
            command = command_of(request, ends)
            routing = _way_of(self.kernel, back_end, command.env, channel)
            if routing is not None:
                command.env = routing.env
            starter = partial(back_end.starter, self, request, ends, command, group=group)
        try:
            # A cwd that is not there fails with its own stage, as without a sandbox; and what restricts
            # itself in place is then already where its command belongs.
            enter_cwd(request.cwd if back_end.needs_cwd else b"/")
            check_deadline(request)  # again: the cwd may have hung
            pid = self._begin(back_end, starter, request.deadline_ns, routing)
        except SpawnFailure:
            if routing is not None:
                routing.end()
            raise
        finally:
            os.chdir("/")  # the next request must not resolve names in this cwd
        if back_end.is_quick and not request.supervision:
            self._hear_at_once(pid)
        return pid

    def begin_worker(self, request: WorkerRequest, descriptors: Sequence[int]) -> int:
        """Begin to start a file worker on the socket that came with the request; return its pid."""
        check_deadline(request)
        if len(descriptors) != 1:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        back_end = back_end_of(self, request.confinement)
        plan = back_end.plan
        if plan is None:
            raise refused("only a plan confines a file worker")

        def work(number: int) -> None:
            # With family, type and protocol given, Python does not ask the kernel for them: the filter
            # refuses getsockopt and getsockname.
            serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number), plan)

        become = back_end.worker(descriptors[0], work)
        return self._keep(
            lambda: fork_child(self.kernel, become, back_end.flags),
            request.deadline_ns,
            namespaces=bool(back_end.flags),
        )

    def filter_template(self, syscall_filter: str) -> FilterTemplate | None:
        """Return the filter template for a filter; None where there is none, or it cannot be started."""
        parent = self._filtered.get(syscall_filter)
        return parent if parent is not None and parent.start() else None

    def compiled_template(self, syscall_filter: str) -> CompiledTemplate | None:
        """Return the same, compiled; None also while many starts keep their descriptors for a second try."""
        if len(self._beginning) >= _MOST_HOLDING:
            return None
        parent = self._compiled.get(syscall_filter)
        return parent if parent is not None and parent.start() else None

    def make_spare(self) -> None:
        """Have a supervisor ready for the next supervised start."""
        if self._supervisors is not None:
            self._supervisors.make_spare()

    def drop_spare(self) -> None:
        """End it."""
        if self._supervisors is not None:
            self._supervisors.spare.drop()

    def is_spare(self, pid: int) -> bool:
        """Return whether a child is that supervisor, which belongs to no start yet."""
        spare = None if self._supervisors is None else self._supervisors.spare
        return spare is not None and spare.is_there and spare.pid == pid

    def report_of(self, pid: int) -> int | None:
        """Return the descriptor that becomes readable with the first report; None once that was taken."""
        sandbox = self._beginning.get(pid)
        return None if sandbox is None else sandbox.report.descriptor

    def hear(self, pid: int) -> SpawnFailure | None:
        """Take the first report of a sandbox, which has come or never will; return None if the command runs.

        A sandbox that failed ends by itself; ask `begin_again` first whether that is the last word.
        """
        reason = self._beginning.pop(pid).report.hear()
        return None if reason is None else SpawnFailure(STAGE_ROOT, errno.EPERM, details=[reason])

    def begin_again(self, pid: int) -> int:
        """Begin another time what a failed sandbox was for, if it was UNLIKE; return the new pid, else 0.

        Raises SpawnFailure.
        """
        failed = self._sandboxes[pid]
        again = failed.report.take_again()
        if again is None:
            return 0
        lease, failed.lease = failed.lease, None
        try:
            return self._keep(again, failed.deadline_ns, lease)
        except SpawnFailure:
            self._give_back(lease)
            raise

    def next_deadline_ns(self) -> int:
        """Return when the next first report is due, on the monotonic clock; 0 when none is."""
        return min((one.deadline_ns for one in self._beginning.values() if one.deadline_ns), default=0)

    def give_up_overdue(self) -> list[int]:
        """Kill the sandboxes that reported nothing in time, and return their pids.

        What belongs to them is released once they are reaped: what they hang in may delay their death, too.
        """
        now = time.monotonic_ns()
        overdue = [pid for pid, one in self._beginning.items() if 0 < one.deadline_ns <= now]
        for pid in overdue:
            del self._beginning[pid]
            below = descendants(pid)
            os.kill(pid, _SIGKILL)
            for each in below:  # nobody has told which of them is the first process of a sandbox
                end_inside(each, 0)  # what it hangs in must not hold up others
        return overdue

    def take_end(self, pid: int, status: int) -> int:
        """Release what belonged to a reaped process; return the wait status to report for it."""
        sandbox = self._sandboxes.pop(pid, None)
        if sandbox is None:
            for template in (*self._filtered.values(), *self._compiled.values()):
                template.forget(pid)
            if self._supervisors is not None:
                self._supervisors.spare.forget(pid)
            return status
        # Only now: while the process lived, something in its sandbox root could use the mask targets.
        try:
            status = sandbox.report.end(status)
            if sandbox.report.inside:
                end_inside(sandbox.report.inside)
            return status
        finally:
            self._give_back(sandbox.lease)
            if sandbox.routing is not None:
                sandbox.routing.end()

    def _warm_up(self) -> None:
        """Find out here, once, what every forked process would find out again."""
        mounts.available(self.kernel)
        landlock.abi(self.kernel)
        privileges.capabilities(self.kernel)
        seccomp.prepare(self.kernel)
        # No garbage is left for the forks to collect, and a collection leaves alone what is frozen: it would
        # write to every object, and each page written to in a fork is copied.
        gc.collect()
        gc.freeze()

    def _hear_at_once(self, pid: int) -> None:
        """Take the first report of a child that is quick; leave it to the event loop if it is not.

        As long as the child is a copy of this process, each page that this process writes to is copied: some
        sixty pages, which with the second answer make such a start a fifth slower.
        """
        poll = select.poll()
        poll.register(self._beginning[pid].report.descriptor, select.POLLIN)
        if poll.poll(_QUICK_MS):
            failure = self.hear(pid)
            if failure is not None:
                raise failure

    def _supervised(
        self, request: SpawnRequest, descriptors: Sequence[int], channel: int
    ) -> tuple[BackEnd, Starter, Routing | None]:
        """Return the back end of a supervised request, what starts the exec supervisor, and its routing."""
        if self._supervisors is None:
            # Imported here: only the zygotes of the shell tool supervise anything.
            from execserver.zygote.supervision.start import Supervisors

            self._supervisors = Supervisors(self.kernel, self.libc, self._program)
        supervisors = self._supervisors
        back_end, supervise = supervisors.prepare(request, descriptors)
        routing = _way_of(self.kernel, back_end, request.env, channel)

        def starter(covers: Sequence[Mount]) -> Start:
            if routing is None:
                return lambda: supervisors.start(request, descriptors, covers, supervise)
            return lambda: fork_child(self.kernel, lambda report, _: supervise(report, covers, routing))

        return back_end, starter, routing

    def _begin(self, back_end: BackEnd, starter: Starter, deadline_ns: int, routing: Routing | None) -> int:
        # The mask targets must exist before the fork: a mount can mask only what is there.
        lease = self._lease(back_end.plan) if back_end.has_root and back_end.plan is not None else None
        try:
            start = starter(covers_of(lease))
            return self._keep(start, deadline_ns, lease, routing, namespaces=bool(back_end.flags))
        except SpawnFailure:
            self._give_back(lease)  # else the mask targets would stay as long as the zygote
            raise

    def _keep(
        self,
        start: Start,
        deadline_ns: int,
        lease: Lease | None = None,
        routing: Routing | None = None,
        *,
        namespaces: bool = True,
    ) -> int:
        """Start the first process of a sandbox; keep what belongs to it."""
        try:
            pid, report = start()
        except OSError as error:
            # Without namespaces it was a plain fork that failed, for want of memory or processes.
            if not namespaces:
                raise SpawnFailure(STAGE_EXEC, error.errno or errno.EAGAIN) from None
            raise root_failure(error, "cannot make namespaces: ") from None
        if routing is not None:
            routing.forked()
        self._sandboxes[pid] = self._beginning[pid] = _Sandbox(report, deadline_ns, lease, routing)
        return pid

    def _lease(self, plan: SandboxPlan) -> Lease | None:
        if not plan.missing and not plan.mounts:
            return None
        if self._mask_targets is None:
            self._mask_targets = MaskTargets(
                state_folder(self._runtime_dir), record_places(self._runtime_dir)
            )
        try:
            return self._mask_targets.acquire(plan)
        except MaskTargetError as error:
            raise SpawnFailure(STAGE_ROOT, errno.EPERM, details=[os.fsencode(str(error))]) from None

    def _give_back(self, lease: Lease | None) -> None:
        if lease is not None and self._mask_targets is not None:
            self._mask_targets.release(lease)


def _apart(request: SpawnRequest, descriptors: Sequence[int]) -> tuple[Sequence[int], int]:
    """Return the descriptors of a request without the socket for listening sockets, and that one or -1."""
    if not request.listens:
        return descriptors, -1
    if not descriptors:
        raise SpawnFailure(STAGE_EXEC, errno.EMFILE)  # the kernel drops what finds no free number
    return descriptors[:-1], descriptors[-1]


def _way_of(kernel: Kernel, back_end: BackEnd, env: Sequence[bytes], channel: int) -> Routing | None:
    """Have a back end route a command to the proxies in its environment; return the way, if it needs one."""
    if back_end.plan is None or back_end.plan.network != NETWORK_PROXY:
        return None
    routing = to_server(env, channel) if channel >= 0 else through_bridge(kernel, env)
    try:
        back_end.route(routing)
    except SpawnFailure:
        routing.end()
        raise
    return routing
