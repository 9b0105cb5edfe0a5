"""The zygote's side of supervision: from a request to what the fork for it has to do.

Exec rules are decoded here, before the fork, and the last ones are kept: all calls of a server share them.
"""

from __future__ import annotations

import errno
import gc
import os

from execserver.egress.environment import proxy_environment
from execserver.protocol.errors import strerror
from execserver.rules.policy_record import PolicyRecordError, decode_policy
from execserver.sandbox.kernel import privileges
from execserver.sandbox.plan import NETWORK_PROXY
from execserver.zygote.confine.back_end import Host, refused
from execserver.zygote.confine.child import BESIDE, KEPT, fork_child
from execserver.zygote.confine.command import Command, command_of
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.confine.table import back_end_of
from execserver.zygote.records import (
    STAGE_EXEC,
    RecordError,
)
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.supervision.environment import OutsideEnvironment, with_variables
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.records import NOTIFY, decode_supervision
from execserver.zygote.supervision.supervisor import ShellFailed, Tools, supervise
from execserver.zygote.supervision.trap import notify
from execserver.zygote.supervision.trap.forced_exit import ForcedExit
from execserver.zygote.supervision.trap.install import hand_over
from execserver.zygote.supervision.wrapper.wrapper_end import shell_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.rules.policy import Policy
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.back_end import BackEnd
    from execserver.zygote.confine.child import Report
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest
    from execserver.zygote.supervision.records import Supervision

    Supervise = Callable[[int, Sequence[Mount], Routing | None], None]


class Supervisors:
    """Makes supervisors for one zygote."""

    def __init__(self, kernel: Kernel, libc: Libc) -> None:
        # A plan cache of its own: the init of a supervised shell keeps one descriptor more, the channel, so
        # its recorded calls have other descriptor numbers.
        self._host = Host(kernel, libc, PlanCache(kernel, keeping=True))
        self._policy: tuple[bytes, Policy] | None = None  # the encoded rules, and the same decoded
        # Made here, since each page that a supervisor writes to is copied for it.
        self._outside = Outside(kernel)
        self._leave = ForcedExit(kernel)
        notify.prepare(kernel)
        gc.collect()
        gc.freeze()

    def prepare(self, request: SpawnRequest, descriptors: Sequence[int]) -> tuple[BackEnd, Supervise]:
        """Return what confines the shell, and what a fork of the zygote has to do to be its supervisor.

        The latter is called in the command's cwd, with the fork's report and the mounts that mask missing
        paths, and never returns.  Raises SpawnFailure.
        """
        back_end = back_end_of(self._host, request.confinement)
        # Stdio and the question socket; the kernel drops what finds no free number in this process.
        if len(descriptors) != 3 + request.pipe_stdin:
            raise SpawnFailure(STAGE_EXEC, errno.EMFILE)
        # The environment of a bridge's command is another one than the request's.
        can_be_routed = request.listens and back_end.watches_routed
        if request.slave or (_is_proxied(back_end.plan) and not can_be_routed):
            raise refused("a shell cannot be supervised on a terminal, or behind such a proxy here")
        try:
            supervision = decode_supervision(request.supervision)
            policy = self._decoded(supervision.policy)
        except (RecordError, PolicyRecordError) as error:
            raise refused(str(error)) from None
        if why := back_end.unwatchable(supervision.interception == NOTIFY):
            raise refused(why)
        kernel, libc = self._host.kernel, self._host.libc
        # What leads to a network of the shell's own leads nowhere outside.
        inner = frozenset(proxy_environment(0, None, local_binding=False)) if request.listens else frozenset()
        tools = Tools(self._outside, self._leave, OutsideEnvironment(supervision.server_env, inner))
        *stdio, questions = descriptors
        command = command_of(request, stdio)
        back_end.make_ready()  # in the zygote, so that the recorded calls serve later supervisors, too
        shell = _Shell(kernel, back_end, request, supervision)

        def supervise_it(report: int, covers: Sequence[Mount], routing: Routing | None) -> None:
            def start_shell(channel: int) -> tuple[int, Report]:
                if routing is None:
                    return shell.start(covers, channel)
                routing.channel = BESIDE
                try:
                    return shell.start(covers, channel)
                finally:
                    os.close(BESIDE)

            supervise(
                *(kernel, libc, policy, supervision, command, questions, report, tools, start_shell),
                # What builds the sandbox, and the shell, are executed under the listener, too, but unasked.
                1 + back_end.builders,
                -1 if routing is None else routing.channel,
            )

        return back_end, supervise_it

    def _decoded(self, record: bytes) -> Policy:
        if self._policy is None or self._policy[0] != record:
            self._policy = record, decode_policy(record)
        return self._policy[1]


class _Shell:
    """One shell, started by its supervisor, whose stdio it gets."""

    def __init__(
        self, kernel: Kernel, back_end: BackEnd, request: SpawnRequest, supervision: Supervision
    ) -> None:
        self._kernel = kernel
        self._back_end = back_end
        self._is_notified = supervision.interception == NOTIFY
        env = request.env
        if not self._is_notified:
            env = with_variables(env, shell_variables(KEPT, supervision.wrapper))
        # The supervisor has the request's stdio as its own by then.
        stdin = 0 if request.pipe_stdin else None
        self._command = Command(request.argv, env, request.cwd, request.arg0, (stdin, 1, 2))

    def start(self, covers: Sequence[Mount], channel: int) -> tuple[int, Report]:
        """Start the shell; return pid and report of the child that is the shell or stands for it.

        Raises ShellFailed.
        """
        back_end = self._back_end
        try:
            become = back_end.watched(self._command, covers, channel, self._watch_self)
            return fork_child(self._kernel, become, back_end.flags)
        except OSError as error:
            reason = strerror(error.errno or errno.EIO)
            if back_end.flags:
                reason = f"cannot make namespaces: {reason}"
            raise ShellFailed(os.fsencode(reason)) from None

    def _watch_self(self) -> None:
        """Make the supervisor hear of every exec of this process and its descendants; the channel is KEPT."""
        if self._is_notified:
            # A listener needs it.  Where nothing is confined, and before bubblewrap, nobody has set it yet.
            privileges.no_new_privileges(self._kernel)
            # A copy, since `hand_over` closes its channel, and whoever called closes KEPT.
            hand_over(self._kernel, os.dup(KEPT))
        else:
            os.set_inheritable(KEPT, True)  # all wrappers of the shell inherit the channel


def _is_proxied(plan: SandboxPlan | None) -> bool:
    return plan is not None and plan.network == NETWORK_PROXY
