"""The zygote's side of sandboxes: it forks their first processes, and keeps what they need.

One start at a time, and each is waited for until its deadline; then its first process is killed, and with it
everything inside.  Reports, leases of placeholders and bridges are kept by pid until the process is reaped.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select

from execserver.protocol.errors import strerror
from execserver.sandbox import bwrap, landlock, landlock_only, mounts, privileges, seccomp
from execserver.sandbox.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.placeholder_files import PlaceholderError
from execserver.sandbox.placeholder_records import state_folder
from execserver.sandbox.placeholders import Placeholders
from execserver.sandbox.plan import (
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    NETWORK_PROXY,
    READ,
    Mount,
    PlanRefused,
)
from execserver.sandbox.plan_record import PlanRecordError, decode_plan
from execserver.sandbox.proxy_bridge import bring_up_loopback, pass_listeners, start_bridge
from execserver.sandbox.proxy_routes import FAILURE, RouteError, find_routes
from execserver.sandbox.syscalls import Kernel
from execserver.zygote import restricted, wrapped
from execserver.zygote.init import ENDED, FAILED, RUNNING, WAIT_STATUS, Setup, run_command, run_worker
from execserver.zygote.records import (
    BACK_END_BUBBLEWRAP,
    BACK_END_LANDLOCK,
    SECCOMP_PROXY_ROUTED,
    STAGE_EXEC,
    STAGE_VIEW,
)
from execserver.zygote.spawn import SpawnFailure, check_deadline, enter_cwd
from execserver.zygote.worker import serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.bwrap import Bwrap
    from execserver.sandbox.placeholders import Lease
    from execserver.sandbox.plan import ViewPlan
    from execserver.sandbox.proxy_bridge import Bridge
    from execserver.sandbox.proxy_routes import Routes
    from execserver.zygote.init import Command
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest, WorkerRequest

_REPORT_BYTES = 4096
_SIGKILL = 9


class _Sandbox:
    """What belongs to one sandbox: the end of its report, what came on it, its placeholders and bridge."""

    __slots__ = ("bridge", "lease", "report", "told")

    def __init__(self, report: int, lease: Lease | None, bridge: Bridge | None) -> None:
        self.report = report
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
        """Start a command as the request asks; return the pid that stands for it and for all inside."""
        check_deadline(request)
        if request.refusal:
            return restricted.start_refusal(request, descriptors)
        kernel = self._kernel
        if not request.plan:
            chosen = FILTER_PROXY_ROUTED if request.seccomp == SECCOMP_PROXY_ROUTED else FILTER_RESTRICTED
            return restricted.start_restricted(
                kernel, self._libc, request, descriptors, lambda: _filter_self(kernel, chosen)
            )
        if request.back_end == BACK_END_LANDLOCK:
            plan = _decoded(request.plan)
            return restricted.start_restricted(
                kernel, self._libc, request, descriptors, lambda: landlock_only.confine_self(kernel, plan)
            )
        command = restricted.command_of(request, descriptors)
        if request.back_end == BACK_END_BUBBLEWRAP:
            return self._start_wrapped(request, command)
        return self._start_in_view(request, _decoded(request.plan), command)

    def start_worker(self, request: WorkerRequest, descriptors: Sequence[int]) -> int:
        """Start a file worker on the socket that came with the request; return its pid."""
        check_deadline(request)
        if len(descriptors) != 1:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        if request.back_end == BACK_END_BUBBLEWRAP:
            return self._start_wrapped_worker(request, descriptors[0])
        plan, kernel, socket = _decoded(request.plan), self._kernel, descriptors[0]

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
        seccomp.prepare(self._kernel)
        gc.collect()
        gc.freeze()

    def _start_in_view(self, request: SpawnRequest, plan: ViewPlan, command: Command) -> int:
        kernel, libc = self._kernel, self._libc
        routes = _routes(command.env) if plan.network == NETWORK_PROXY else None
        enter_cwd(request.cwd)
        try:
            check_deadline(request)
            lease = self._lease(plan)
            bridge = None
            try:
                bridge = None if routes is None else start_bridge(routes.endpoints, self._tie_to_parent())
            except OSError as error:
                self._give_back(lease, bridge)
                raise _view_failure(error, FAILURE) from None
            before = None if bridge is None or routes is None else _prepare_routes(routes, bridge)
            extra = _covers(lease)
            return self._fork(
                flags_for(plan),
                request.deadline_ns,
                lambda report, identity: run_command(
                    Setup(kernel, plan, identity, report, extra), libc, command, before
                ),
                lease,
                bridge,
            )
        finally:
            os.chdir("/")

    def _start_wrapped(self, request: SpawnRequest, command: Command) -> int:
        program, plan, _ = _wrapped(request.plan)
        enter_cwd(request.cwd)
        try:
            check_deadline(request)
            lease = self._lease(plan)
            covers = _covers(lease)
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
        program, plan, record = _wrapped(request.plan)
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
        """Fork the first process of a sandbox, and return its pid once it says that all runs."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        identity = Identity()
        try:
            pid, mapped = fork_into(self._kernel, flags)
        except OSError as error:
            os.close(ours)
            os.close(theirs)
            self._give_back(lease, bridge)
            raise _view_failure(error, "cannot make namespaces: ") from None
        if pid == 0:
            gc.disable()
            try:
                become(theirs, identity if mapped else None)
            finally:
                os._exit(1)
        os.close(theirs)
        if bridge is not None:
            bridge.close_channel()
        self._sandboxes[pid] = _Sandbox(ours, lease, bridge)
        self._await(pid, ours, deadline_ns)
        return pid

    def _await(self, pid: int, report: int, deadline_ns: int) -> None:
        poll = select.poll()
        poll.register(report, select.POLLIN)
        if not poll.poll(restricted.milliseconds_until(deadline_ns)):
            # Whatever it hangs in may hold its death up, too; what it has is given back once it is reaped.
            os.kill(pid, _SIGKILL)
            raise SpawnFailure(STAGE_EXEC, errno.ETIMEDOUT)
        told = os.read(report, _REPORT_BYTES)
        if told[:1] == RUNNING:
            self._sandboxes[pid].told = told[1:]
            return
        os.waitpid(pid, 0)
        self.take_end(pid, 0)
        reason = told.removeprefix(FAILED).strip() or b"its first process was killed"
        raise SpawnFailure(STAGE_VIEW, errno.EPERM, details=[reason])

    def _lease(self, plan: ViewPlan) -> Lease | None:
        if not plan.missing and not plan.mounts:
            return None
        if self._placeholders is None:
            self._placeholders = Placeholders(state_folder(self._runtime_dir))
        try:
            return self._placeholders.acquire(plan)
        except PlaceholderError as error:
            raise SpawnFailure(STAGE_VIEW, errno.EPERM, details=[os.fsencode(str(error))]) from None

    def _give_back(self, lease: Lease | None, bridge: Bridge | None) -> None:
        if bridge is not None:
            bridge.kill()
        if lease is not None and self._placeholders is not None:
            self._placeholders.release(lease)

    def _tie_to_parent(self) -> Callable[[], None]:
        """Return what makes a forked child die with this process."""
        parent = os.getpid()

        def tie() -> None:
            privileges.die_with_parent(self._kernel)
            if os.getppid() != parent:
                os._exit(1)

        return tie


def _covers(lease: Lease | None) -> list[Mount]:
    """Return the mounts that keep placeholders as they are; each must still be the object that is locked."""
    if lease is None:
        return []
    # The lease holds them in the order of the missing paths.
    return [
        Mount(READ, missing.path, missing.path, held.identity)
        for missing, held in zip(lease.covered, lease.held, strict=False)
    ]


def _prepare_routes(routes: Routes, bridge: Bridge) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    def prepare(env: Sequence[bytes]) -> Sequence[bytes]:
        bring_up_loopback()
        return routes.rewrite(env, pass_listeners(bridge.channel, len(routes.endpoints)))

    return prepare


def _routes(env: Sequence[bytes]) -> Routes:
    try:
        return find_routes(env)
    except RouteError as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(f"{FAILURE}{error}")]) from None


def _decoded(plan: bytes) -> ViewPlan:
    try:
        return decode_plan(plan)
    except PlanRecordError as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(str(error))]) from None


def _wrapped(record: bytes) -> tuple[Bwrap, ViewPlan, bytes]:
    try:
        program, rest = bwrap.decode(record)
    except PlanRefused as error:
        raise SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(str(error))]) from None
    return program, _decoded(rest), rest


def _filter_self(kernel: Kernel, syscall_filter: str) -> None:
    privileges.no_new_privileges(kernel)
    seccomp.install(kernel, syscall_filter)


def _view_failure(error: OSError, what: str) -> SpawnFailure:
    number = error.errno or errno.EIO
    return SpawnFailure(STAGE_VIEW, number, details=[os.fsencode(f"{what}{strerror(number)}")])
