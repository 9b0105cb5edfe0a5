"""The zygote's side of supervision: from a request to what its fork has to do.

Policies are decoded here, before the fork, and the last one is kept: the calls of a server share theirs.
"""

from __future__ import annotations

import errno
import gc
import os

from execserver.protocol.errors import strerror
from execserver.rules.policy_record import PolicyRecordError, decode_policy
from execserver.sandbox import landlock_only, privileges
from execserver.sandbox.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.plan import FILTER_PROXY_ROUTED, FILTER_RESTRICTED, NETWORK_PROXY
from execserver.sandbox.view import ViewFailed
from execserver.zygote import restricted
from execserver.zygote.init import KEPT, Command, Setup, run_command
from execserver.zygote.known_plans import KnownPlans
from execserver.zygote.records import (
    BACK_END_LANDLOCK,
    BACK_END_NATIVE,
    SECCOMP_NONE,
    SECCOMP_PROXY_ROUTED,
    STAGE_EXEC,
    STAGE_VIEW,
    RecordError,
)
from execserver.zygote.requested import filter_self
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.supervision import notify
from execserver.zygote.supervision.environment import OutsideEnvironment, with_variables
from execserver.zygote.supervision.install import hand_over
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.records import NOTIFY, decode_supervision
from execserver.zygote.supervision.supervisor import ShellFailed, Tools, supervise
from execserver.zygote.supervision.trapped_exit import TrappedExit
from execserver.zygote.supervision.wrapper_end import shell_variables
from execserver.zygote.wrapped import guard_command, programs_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.rules.policy import Policy
    from execserver.sandbox.bwrap import Bwrap
    from execserver.sandbox.plan import Mount, ViewPlan
    from execserver.sandbox.prepared import PreparedView
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest
    from execserver.zygote.supervision.records import Supervision

    Become = Callable[[int, Sequence[Mount]], None]


class Supervisors:
    """Makes supervisors for one zygote."""

    def __init__(self, kernel: Kernel, libc: Libc) -> None:
        self._kernel = kernel
        self._libc = libc
        self._plans = KnownPlans(kernel, keeping=True)
        self._policy: tuple[bytes, Policy] | None = None
        # Made here, as each page that a supervisor writes to is copied for it.
        self._outside = Outside()
        self._leave = TrappedExit(kernel)
        notify.prepare(kernel)
        gc.collect()
        gc.freeze()

    def prepare(
        self,
        request: SpawnRequest,
        descriptors: Sequence[int],
        plan: ViewPlan | None,
        program: Bwrap | None = None,
    ) -> Become:
        """Return what a fork of the zygote, in the command's folder, has to call with its report and covers.

        That never returns.  `program` is the bubblewrap that carries out the plan.  Raises SpawnFailure.
        """
        if len(descriptors) != 3 + request.pipe_stdin:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        if request.slave or _is_proxied(plan):
            raise _refused("a shell cannot be supervised on a terminal or behind a proxy")
        try:
            supervision = decode_supervision(request.supervision)
            policy = self._decoded(supervision.policy)
        except (RecordError, PolicyRecordError) as error:
            raise _refused(str(error)) from None
        tools = Tools(self._outside, self._leave, OutsideEnvironment(supervision.server_env))
        *stdio, questions = descriptors
        command = restricted.command_of(request, stdio)

        if program is not None and program.setuid and supervision.interception == NOTIFY:
            raise _refused(
                "a bubblewrap with the setuid bit cannot build a sandbox whose programs are watched"
            )
        in_view = plan is not None and request.back_end == BACK_END_NATIVE
        prepared = self._plans.view(request.plan) if in_view else None
        builders = 0 if program is None or plan is None else programs_before(self._kernel, plan)
        shell = _Shell(self._kernel, self._libc, request, plan, prepared, program, supervision)

        def become(report: int, covers: Sequence[Mount]) -> None:
            supervise(
                *(self._kernel, self._libc, policy, supervision, command, questions, report, tools),
                lambda channel: shell.start(covers, channel),
                1 + builders,
            )

        return become

    def _decoded(self, record: bytes) -> Policy:
        if self._policy is None or self._policy[0] != record:
            self._policy = record, decode_policy(record)
        return self._policy[1]


class _Shell:
    """One shell to be started by its supervisor, whose stdio it gets."""

    def __init__(
        self,
        kernel: Kernel,
        libc: Libc,
        request: SpawnRequest,
        plan: ViewPlan | None,
        prepared: PreparedView | None,
        program: Bwrap | None,
        supervision: Supervision,
    ) -> None:
        self._kernel = kernel
        self._prepared = prepared
        self._program = program
        self._libc = libc
        self._request = request
        self._plan = plan
        self._is_notified = supervision.interception == NOTIFY
        self._is_watched = False
        if not self._is_notified:
            request.env = with_variables(request.env, shell_variables(KEPT, supervision.wrapper))

    def start(self, covers: Sequence[Mount], channel: int) -> tuple[int, int]:
        """Start it; return its pid and a report, or -1 where the process is the shell itself.

        Raises ShellFailed.
        """
        if self._plan is None or self._request.back_end == BACK_END_LANDLOCK:
            return self._start_restricted(channel), -1
        if self._program is not None:
            return self._start_in_bubblewrap(self._program, self._plan, covers, channel)
        return self._start_in_view(self._plan, covers, channel)

    def _start_in_view(self, plan: ViewPlan, covers: Sequence[Mount], channel: int) -> tuple[int, int]:
        """Fork the first process of a view; return its pid and its report."""
        kernel, libc, command = self._kernel, self._libc, self._command()
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        identity = Identity()
        try:
            pid, mapped = fork_into(kernel, flags_for(plan))
        except OSError as error:
            reason = f"cannot make namespaces: {strerror(error.errno or errno.EIO)}"
            raise ShellFailed(os.fsencode(reason)) from None
        if pid == 0:
            gc.disable()
            try:
                own = identity if mapped else None
                setup = Setup(kernel, plan, own, theirs, covers, self._prepared)
                run_command(setup, libc, command, None, channel, self._start_watched)
            finally:
                os._exit(1)
        os.close(theirs)
        return pid, ours

    def _start_in_bubblewrap(
        self, program: Bwrap, plan: ViewPlan, covers: Sequence[Mount], channel: int
    ) -> tuple[int, int]:
        """Fork the guard of a bubblewrap, which is watched itself; return its pid and its report."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        command = self._command()
        pid = os.fork()
        if pid == 0:
            gc.disable()
            try:
                guard_command(
                    *(self._kernel, program, plan, command, covers, theirs, channel), self._watch_bubblewrap
                )
            finally:
                os._exit(1)
        os.close(theirs)
        return pid, ours

    def _command(self) -> Command:
        request = self._request
        stdin = 0 if request.pipe_stdin else None
        return Command(request.argv, request.env, request.cwd, request.arg0, (stdin, 1, 2))

    def _watch_bubblewrap(self) -> None:
        if self._is_notified:
            privileges.no_new_privileges(self._kernel)
        self._watch_self()

    def _start_watched(self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes]) -> int:
        """Start the shell from the first process of its view, which is watched itself from then on.

        It executes nothing, so it is never asked about; a fork that installs the filter would cost more.
        """
        if not self._is_watched:
            self._is_watched = True
            try:
                self._watch_self()
            except OSError as error:
                raise ViewFailed(f"cannot watch the shell: {error.strerror}") from None
        return self._libc.spawn_in_session(path, argv, env)

    def _start_restricted(self, channel: int) -> int:
        """Start the shell as a child that restricts itself; return its pid."""
        stdio = (0, 1, 2) if self._request.pipe_stdin else (1, 2)
        try:
            return restricted.start_restricted(
                self._kernel, self._libc, self._request, stdio, self._restrict_self, channel
            )
        except SpawnFailure as failure:
            reason = b" ".join(failure.details) or os.fsencode(strerror(failure.errno))
            raise ShellFailed(reason) from None

    def _restrict_self(self) -> None:
        kernel, seccomp = self._kernel, self._request.seccomp
        if self._plan is not None:
            landlock_only.confine_self(kernel, self._plan)
        elif seccomp != SECCOMP_NONE:
            proxied = seccomp == SECCOMP_PROXY_ROUTED
            filter_self(kernel, FILTER_PROXY_ROUTED if proxied else FILTER_RESTRICTED)
        elif self._is_notified:
            privileges.no_new_privileges(kernel)
        self._watch_self()

    def _watch_self(self) -> None:
        """Let the supervisor know of all that this process and its descendants start; the channel is KEPT."""
        if self._is_notified:
            hand_over(self._kernel, os.dup(KEPT))
        else:
            os.set_inheritable(KEPT, True)


def _is_proxied(plan: ViewPlan | None) -> bool:
    return plan is not None and plan.network == NETWORK_PROXY


def _refused(reason: str) -> SpawnFailure:
    return SpawnFailure(STAGE_VIEW, errno.EINVAL, details=[os.fsencode(reason)])
