"""The zygote's side of sandboxes: it forks their first processes, and keeps what they need.

A start returns once the first process is forked; how it went comes on its report, which the zygote's loop
watches until the deadline.  Reports, leases of placeholders and bridges are kept by pid until the process is
reaped.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import time

from execserver.sandbox import landlock, landlock_only, mounts, privileges, seccomp
from execserver.sandbox.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.placeholder_files import PlaceholderError
from execserver.sandbox.placeholder_records import record_places, state_folder
from execserver.sandbox.placeholders import Placeholders
from execserver.sandbox.plan import FILTER_PROXY_ROUTED, FILTER_RESTRICTED, NETWORK_PROXY
from execserver.sandbox.proxy_bridge import start_bridge
from execserver.sandbox.proxy_routes import FAILURE
from execserver.sandbox.syscalls import Kernel
from execserver.zygote import restricted, wrapped
from execserver.zygote.filtered import INHERITED, FilteredParent
from execserver.zygote.init import ENDED, FAILED, RUNNING, WAIT_STATUS, Setup, run_command, run_worker
from execserver.zygote.known_plans import KnownPlans
from execserver.zygote.records import (
    BACK_END_BUBBLEWRAP,
    BACK_END_LANDLOCK,
    SECCOMP_PROXY_ROUTED,
    STAGE_EXEC,
    STAGE_VIEW,
)
from execserver.zygote.requested import (
    covers_of,
    decoded_plan,
    decoded_wrapping,
    filter_self,
    planned,
    preparing_routes,
    routes_of,
    tying_to_parent,
    view_failure,
)
from execserver.zygote.spawn import SpawnFailure, check_deadline, enter_cwd
from execserver.zygote.worker import serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.placeholders import Lease
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.proxy_bridge import Bridge
    from execserver.zygote.init import Command
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest, WorkerRequest
    from execserver.zygote.supervision.start import Supervisors

_REPORT_BYTES = 4096
_SIGKILL = 9


class _Sandbox:
    """What belongs to one sandbox: the end of its report, what came on it, its placeholders and bridge.

    `deadline_ns` is when its first word is due, 0 for never.
    """

    __slots__ = ("bridge", "deadline_ns", "lease", "report", "told")

    def __init__(self, report: int, deadline_ns: int, lease: Lease | None, bridge: Bridge | None) -> None:
        self.report = report
        self.deadline_ns = deadline_ns
        self.lease = lease
        self.bridge = bridge
        self.told = b""


class Confinement:
    """All sandboxes of one zygote, which has one thread.

    `runtime_dir` is where the records of placeholders belong; `kernel` may stand for an older one.  Starts
    raise SpawnFailure, with STAGE_VIEW and the reason when no sandbox can be made; nothing runs then.
    """

    def __init__(self, libc: Libc, kernel: Kernel | None = None, runtime_dir: bytes | None = None) -> None:
        self._libc = libc
        self._kernel = kernel or Kernel()
        self._runtime_dir = runtime_dir
        self._placeholders: Placeholders | None = None
        self._sandboxes: dict[int, _Sandbox] = {}
        self._beginning: dict[int, _Sandbox] = {}
        self._plans = KnownPlans(self._kernel)
        self._filtered = {name: FilteredParent(self._kernel, libc, name) for name in INHERITED}
        self._supervisors: Supervisors | None = None
        self._warm_up()

    @property
    def pending(self) -> bool:
        """True while placeholders wait to be removed; call `retry` now and then."""
        return self._placeholders is not None and self._placeholders.pending

    def retry(self) -> None:
        """Try again to remove placeholders that other owners' views still used."""
        if self._placeholders is not None:
            self._placeholders.retry()

    def close(self) -> None:
        """Give up what is held, once every sandbox has ended."""
        for pid in list(self._sandboxes):
            self.take_end(pid, 0)
        if self._placeholders is not None:
            self._placeholders.close()

    def start(self, request: SpawnRequest, descriptors: Sequence[int]) -> int:
        """Start a command and wait until it runs; return the pid that stands for it and for all inside."""
        return self._wait(self.begin(request, descriptors))

    def start_worker(self, request: WorkerRequest, descriptors: Sequence[int]) -> int:
        """Start a file worker and wait until it serves; return its pid."""
        return self._wait(self.begin_worker(request, descriptors))

    def begin(self, request: SpawnRequest, descriptors: Sequence[int]) -> int:
        """Begin to start a command as the request asks; return the pid that will stand for all of it.

        While there is a `report_of` the pid, the sandbox is still being made.
        """
        check_deadline(request)
        if request.refusal:
            return restricted.start_refusal(request, descriptors)
        if request.supervision:
            return self._start_supervised(request, descriptors)
        kernel = self._kernel
        if not request.plan:
            chosen = FILTER_PROXY_ROUTED if request.seccomp == SECCOMP_PROXY_ROUTED else FILTER_RESTRICTED
            return restricted.start_restricted(
                kernel, self._libc, request, descriptors, lambda: filter_self(kernel, chosen)
            )
        if request.back_end == BACK_END_LANDLOCK:
            plan = decoded_plan(request.plan)
            return restricted.start_restricted(
                kernel, self._libc, request, descriptors, lambda: landlock_only.confine_self(kernel, plan)
            )
        command = restricted.command_of(request, descriptors)
        if request.back_end == BACK_END_BUBBLEWRAP:
            return self._start_wrapped(request, command)
        return self._start_in_view(request, descriptors, command)

    def begin_worker(self, request: WorkerRequest, descriptors: Sequence[int]) -> int:
        """Begin to start a file worker on the socket that came with the request; return its pid."""
        check_deadline(request)
        if len(descriptors) != 1:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        if request.back_end == BACK_END_BUBBLEWRAP:
            return self._start_wrapped_worker(request, descriptors[0])
        plan, kernel, socket = decoded_plan(request.plan), self._kernel, descriptors[0]

        def work(number: int) -> None:
            # With everything named, the object asks nothing that the filter refuses.
            serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number), plan)

        if request.back_end == BACK_END_LANDLOCK:
            return restricted.start_restricted_worker(
                kernel, socket, request.deadline_ns, lambda: landlock_only.confine_self(kernel, plan), work
            )
        return self._fork(
            flags_for(plan),
            request.deadline_ns,
            lambda report, identity: run_worker(Setup(kernel, plan, identity, report), socket, work),
            None,
            None,
        )

    def report_of(self, pid: int) -> int | None:
        """Return the descriptor that becomes readable with the first word of a sandbox; None once it came."""
        sandbox = self._beginning.get(pid)
        return None if sandbox is None else sandbox.report

    def hear(self, pid: int) -> SpawnFailure | None:
        """Take the first word of a sandbox, which has come or never will: None when the command runs.

        A sandbox that failed ends by itself.
        """
        sandbox = self._beginning.pop(pid)
        try:
            told = os.read(sandbox.report, _REPORT_BYTES)
        except BlockingIOError:
            told = b""
        if told[:1] == RUNNING:
            sandbox.told = told[1:]
            return None
        reason = told.removeprefix(FAILED).strip() or b"its first process was killed"
        return SpawnFailure(STAGE_VIEW, errno.EPERM, details=[reason])

    def next_deadline_ns(self) -> int:
        """Return when the first word of some sandbox is due; 0 when none is."""
        return min((one.deadline_ns for one in self._beginning.values() if one.deadline_ns), default=0)

    def give_up_overdue(self) -> list[int]:
        """Kill the sandboxes that did not say anything in time, and return their pids.

        Whatever they hang in may hold up their death, too; what they have is given back once they are reaped.
        """
        now = time.monotonic_ns()
        overdue = [pid for pid, one in self._beginning.items() if 0 < one.deadline_ns <= now]
        for pid in overdue:
            del self._beginning[pid]
            os.kill(pid, _SIGKILL)
        return overdue

    def take_end(self, pid: int, status: int) -> int:
        """Let go of what belonged to a reaped process; return the wait status to report for it."""
        sandbox = self._sandboxes.pop(pid, None)
        if sandbox is None:
            return status
        try:
            # Its end is in the pipe before the process can be reaped.
            told = sandbox.told + os.read(sandbox.report, _REPORT_BYTES)
        except BlockingIOError:
            told = sandbox.told  # somebody else still holds the other end, and nothing came
        finally:
            os.close(sandbox.report)
            if sandbox.bridge is not None:
                sandbox.bridge.kill()
            if sandbox.lease is not None and self._placeholders is not None:
                self._placeholders.release(sandbox.lease)
        if told[:1] == ENDED and len(told) == 1 + WAIT_STATUS.size:
            return int(WAIT_STATUS.unpack_from(told, 1)[0])
        return status

    def _warm_up(self) -> None:
        """Find out once what every first process would find out again; nothing of it stays garbage there."""
        mounts.available(self._kernel)
        landlock.abi(self._kernel)
        privileges.capabilities(self._kernel)
        seccomp.prepare(self._kernel)
        gc.collect()
        gc.freeze()

    def _start_in_view(self, request: SpawnRequest, descriptors: Sequence[int], command: Command) -> int:
        kernel, libc = self._kernel, self._libc
        plan = self._plans.plan(request.plan)
        routes = routes_of(command.env) if plan.network == NETWORK_PROXY else None
        enter_cwd(request.cwd)
        try:
            check_deadline(request)
            lease = self._lease(plan)
            bridge = None
            try:
                bridge = None if routes is None else start_bridge(routes.endpoints, tying_to_parent(kernel))
            except OSError as error:
                self._give_back(lease, bridge)
                raise view_failure(error, FAILURE) from None
            before = None if bridge is None or routes is None else preparing_routes(routes, bridge)
            extra = covers_of(lease)
            filtered = self._filtered.get(plan.syscall_filter) if bridge is None else None
            if filtered is not None and filtered.start():
                fork, deadline_ns = filtered.fork, request.deadline_ns
                return self._keep(
                    lambda report: fork(request, descriptors, extra, report), deadline_ns, lease, None
                )
            prepared = self._plans.view(request.plan)
            return self._fork(
                flags_for(plan),
                request.deadline_ns,
                lambda report, identity: run_command(
                    Setup(kernel, plan, identity, report, extra, prepared), libc, command, before
                ),
                lease,
                bridge,
            )
        finally:
            os.chdir("/")

    def _start_supervised(self, request: SpawnRequest, descriptors: Sequence[int]) -> int:
        """Fork the supervisor of a shell."""
        if self._supervisors is None:
            from execserver.zygote.supervision.start import Supervisors

            self._supervisors = Supervisors(self._kernel, self._libc)
        plan, program = planned(request)
        become = self._supervisors.prepare(request, descriptors, plan, program)
        enter_cwd(request.cwd)
        try:
            check_deadline(request)
            lease = None if plan is None or request.back_end == BACK_END_LANDLOCK else self._lease(plan)
            covers = covers_of(lease)
            return self._fork(0, request.deadline_ns, lambda report, _: become(report, covers), lease, None)
        finally:
            os.chdir("/")

    def _start_wrapped(self, request: SpawnRequest, command: Command) -> int:
        program, plan, _ = decoded_wrapping(request.plan)
        enter_cwd(request.cwd)
        try:
            check_deadline(request)
            lease = self._lease(plan)
            covers = covers_of(lease)
            return self._fork(
                0,
                request.deadline_ns,
                lambda report, _: wrapped.guard_command(self._kernel, program, plan, command, covers, report),
                lease,
                None,
            )
        finally:
            os.chdir("/")

    def _start_wrapped_worker(self, request: WorkerRequest, socket: int) -> int:
        program, plan, record = decoded_wrapping(request.plan)
        return self._fork(
            0,
            request.deadline_ns,
            lambda report, _: wrapped.become_worker(self._kernel, program, plan, record, socket, report),
            None,
            None,
        )

    def _fork(
        self,
        flags: int,
        deadline_ns: int,
        become: Callable[[int, Identity | None], None],
        lease: Lease | None,
        bridge: Bridge | None,
    ) -> int:
        """Fork the first process of a sandbox and return its pid; how it goes comes on its report."""
        identity = Identity()

        def fork(report: int) -> int:
            pid, mapped = fork_into(self._kernel, flags)
            if pid == 0:
                gc.disable()
                try:
                    become(report, identity if mapped else None)
                finally:
                    os._exit(1)
            return pid

        return self._keep(fork, deadline_ns, lease, bridge)

    def _keep(
        self, fork: Callable[[int], int], deadline_ns: int, lease: Lease | None, bridge: Bridge | None
    ) -> int:
        """Have the first process of a sandbox forked, which is given its report; keep what belongs to it."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = fork(theirs)
        except OSError as error:
            os.close(ours)
            os.close(theirs)
            self._give_back(lease, bridge)
            raise view_failure(error, "cannot make namespaces: ") from None
        os.close(theirs)
        if bridge is not None:
            bridge.close_channel()
        self._sandboxes[pid] = self._beginning[pid] = _Sandbox(ours, deadline_ns, lease, bridge)
        return pid

    def _wait(self, pid: int) -> int:
        sandbox = self._beginning.get(pid)
        if sandbox is None:
            return pid
        poll = select.poll()
        poll.register(sandbox.report, select.POLLIN)
        poll.poll(restricted.milliseconds_until(sandbox.deadline_ns))
        failure = SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT) if self.give_up_overdue() else self.hear(pid)
        if failure is None:
            return pid
        os.waitpid(pid, 0)
        self.take_end(pid, 0)
        raise failure

    def _lease(self, plan: ViewPlan) -> Lease | None:
        if not plan.missing and not plan.mounts:
            return None
        if self._placeholders is None:
            self._placeholders = Placeholders(
                state_folder(self._runtime_dir), record_places(self._runtime_dir)
            )
        try:
            return self._placeholders.acquire(plan)
        except PlaceholderError as error:
            raise SpawnFailure(STAGE_VIEW, errno.EPERM, details=[os.fsencode(str(error))]) from None

    def _give_back(self, lease: Lease | None, bridge: Bridge | None) -> None:
        if bridge is not None:
            bridge.kill()
        if lease is not None and self._placeholders is not None:
            self._placeholders.release(lease)
