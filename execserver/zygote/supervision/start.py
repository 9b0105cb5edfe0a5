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
from execserver.sandbox.kernel.namespaces import Identity
from execserver.sandbox.plan import NETWORK_PROXY
from execserver.zygote.confine.back_end import Host, refused
from execserver.zygote.confine.child import BESIDE, KEPT, forked, start_child, tell_failure
from execserver.zygote.confine.command import Command, command_of
from execserver.zygote.confine.compiled_template import CompiledRoots, hello
from execserver.zygote.confine.handed_start import handed, start_in
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.confine.table import back_end_of
from execserver.zygote.records import RecordError
from execserver.zygote.spawn import SpawnFailure
from execserver.zygote.stages import STAGE_EXEC
from execserver.zygote.supervision.environment import OutsideEnvironment, with_variables
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.records import NOTIFY, decode_supervision
from execserver.zygote.supervision.spare_supervisor import Inits, SpareSupervisor
from execserver.zygote.supervision.supervisor import ShellFailed, Supervisor, Tools, supervise
from execserver.zygote.supervision.trap import notify
from execserver.zygote.supervision.trap.forced_exit import ForcedExit
from execserver.zygote.supervision.trap.install import hand_over
from execserver.zygote.supervision.watched_template import WatchedTemplate
from execserver.zygote.supervision.wrapper.wrapper_end import shell_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.rules.policy import Policy
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.sandbox.rootfs.compiled import CompiledRoot
    from execserver.zygote.confine.back_end import BackEnd
    from execserver.zygote.confine.child import Become, Report
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest
    from execserver.zygote.supervision.records import Supervision

    Supervise = Callable[[int, Sequence[Mount], Routing | None], None]


class Supervisors:
    """Makes supervisors for one zygote."""

    def __init__(self, kernel: Kernel, libc: Libc, program: bytes = b"") -> None:
        """`program` is the path of the compiled template, if there is one."""
        # A plan cache of its own: the init of a supervised shell keeps one descriptor more, the channel, so
        # its recorded calls have other descriptor numbers.
        self._host = Host(kernel, libc, PlanCache(kernel, keeping=True))
        self._policy: tuple[bytes, Policy] | None = None  # the encoded rules, and the same decoded
        # Made here, since each page that a supervisor writes to is copied for it.
        self._outside = Outside(kernel)
        self._leave = ForcedExit(kernel)
        notify.prepare(kernel)
        hello()
        self.spare = SpareSupervisor(kernel, self._become)
        self._program = program
        self._roots = CompiledRoots(self._host.plans)
        # Of a supervisor, which inherits this one before it has a process.
        self._inits = Inits(kernel, self._become_init, WatchedTemplate(kernel, libc, program))
        self._identity = Identity()
        self._last: tuple[SpawnRequest, Sequence[Mount]] | None = None
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
        if request.slave:
            raise refused("a shell cannot be supervised on a terminal")
        # The environment of a bridge's command is another one than the request's.
        if _is_proxied(back_end.plan) and not request.listens:
            raise refused("a shell cannot be supervised behind a proxy that is not the server's")
        supervision, policy = self._decoded(request)
        if why := back_end.unwatchable(supervision.interception == NOTIFY):
            raise refused(why)
        kernel, libc = self._host.kernel, self._host.libc
        # What leads to a network of the shell's own leads nowhere outside.
        inner = frozenset(proxy_environment(0, None, local_binding=False)) if request.listens else frozenset()
        tools = Tools(self._outside, self._leave, OutsideEnvironment(supervision.server_env, inner))
        *stdio, questions = descriptors
        command = command_of(request, stdio)
        back_end.make_ready()  # in the zygote, so that the recorded calls serve later supervisors, too
        # The supervisor has the request's stdio as its own by then.
        own = (0 if request.pipe_stdin else None, 1, 2)
        root = self._compiled_root(back_end, request, supervision)
        shell = _Shell(kernel, back_end, request, supervision, own, self._inits, root)

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
                self._inits.below,
            )

        return back_end, supervise_it

    def _compiled_root(
        self, back_end: BackEnd, request: SpawnRequest, supervision: Supervision
    ) -> CompiledRoot | None:
        """Return what the compiled init plays for a request; None where Python serves it."""
        is_recorded = back_end.recorded is not None and not request.listens
        if not self._program or not is_recorded or supervision.interception != NOTIFY:
            return None
        return self._roots.root(request.confinement.plan)

    def start(
        self, request: SpawnRequest, descriptors: Sequence[int], covers: Sequence[Mount], supervise: Supervise
    ) -> tuple[int, Report]:
        """Start what `prepare` has prepared for a request without routing: in a spare, else in a fork.

        Raises OSError.
        """
        self._last = request, covers

        def begin(report: int) -> int:
            pid = 0
            if self.spare.is_there:
                pid = self.spare.take(handed(request, covers), report, descriptors)
            return pid or forked(self._host.kernel, lambda report, _: supervise(report, covers, None), report)

        return start_child(begin)

    def make_spare(self) -> None:
        """Have a spare ready for the next start, if there was one before."""
        last, self._last = self._last, None
        if last is not None and not self.spare.is_there:
            self.spare.fork(0, handed(*last))

    def _become(self, data: bytes, descriptors: Sequence[int], mapped: bool) -> None:
        """Be the supervisor of a start as a spare; without descriptors only go through it."""
        request, covers = start_in(data)
        try:
            if not descriptors:
                self._rehearse(request, data)
                return
            report, folder, *others = descriptors
            os.fchdir(folder)
            _, supervise = self.prepare(request, others)
        except SpawnFailure as failure:
            if descriptors:
                reason = failure.details[0] if failure.details else os.fsencode(strerror(failure.errno))
                tell_failure(descriptors[0], reason)
            os._exit(1)
        self._inits.serve(data)
        supervise(report, covers, None)

    def _rehearse(self, request: SpawnRequest, data: bytes) -> None:
        """Touch what a supervisor will: each page that it writes to is copied now and not in a start."""
        back_end, _ = self.prepare(request, (0,) * (3 + request.pipe_stdin))
        supervision, policy = self._decoded(request)
        root = self._compiled_root(back_end, request, supervision)
        self._inits.make(back_end, root, self._host.plans, data)
        tools = Tools(self._outside, self._leave, OutsideEnvironment(supervision.server_env))
        # Its descriptors are closed with all others that no start has brought.
        Supervisor(self._host.kernel, self._host.libc, policy, supervision, tools, 1).rehearse()

    def _become_init(self, data: bytes, descriptors: Sequence[int], mapped: bool) -> None:
        """Be the sandbox init of a supervisor's start as a spare; without descriptors only go through it."""
        (request, covers), kernel = start_in(data), self._host.kernel
        back_end = back_end_of(self._host, request.confinement)
        back_end.make_ready()
        report, channel, stdin, *outputs = descriptors or (0, 0, 0, 0, 0)
        stdio = (stdin if request.pipe_stdin else None, *outputs)
        shell = _Shell(kernel, back_end, request, decode_supervision(request.supervision), stdio)
        become = shell.watched(covers, channel)
        if descriptors:
            become(report, self._identity if mapped else None)

    def _decoded(self, request: SpawnRequest) -> tuple[Supervision, Policy]:
        """Return how a request's shell is watched, and its rules; raises SpawnFailure."""
        try:
            supervision = decode_supervision(request.supervision)
            record = supervision.policy
            if self._policy is None or self._policy[0] != record:
                self._policy = record, decode_policy(record)
        except (RecordError, PolicyRecordError) as error:
            raise refused(str(error)) from None
        return supervision, self._policy[1]


class _Shell:
    """One shell, started by its supervisor, whose stdio it gets."""

    def __init__(
        self,
        kernel: Kernel,
        back_end: BackEnd,
        request: SpawnRequest,
        supervision: Supervision,
        stdio: Sequence[int | None],
        inits: Inits | None = None,
        root: CompiledRoot | None = None,
    ) -> None:
        self._kernel = kernel
        self._root = root  # for the compiled init
        self._back_end = back_end
        self._is_notified = supervision.interception == NOTIFY
        self._inits = inits
        env = request.env
        if not self._is_notified:
            env = with_variables(env, shell_variables(KEPT, supervision.wrapper))
        self._command = Command(request.argv, env, request.cwd, request.arg0, stdio)

    def start(self, covers: Sequence[Mount], channel: int) -> tuple[int, Report]:
        """Start the shell; return pid and report of the child that is the shell or stands for it.

        Raises ShellFailed.
        """

        def by_python(ends: Sequence[int]) -> tuple[int, Report]:
            *stdio, kept = ends
            self._command.stdio = (None,) * (3 - len(stdio)) + (*stdio,)
            return self._start_by_python(covers, kept)

        plan, inits = self._back_end.plan, self._inits
        if self._root is None or inits is None or plan is None or not inits.template.start():
            return self._start_by_python(covers, channel)
        try:
            return inits.template.begin(self._root, plan, self._command, covers, 0, by_python, (channel,))
        except OSError as error:
            raise self._failed(error) from None
        finally:
            inits.template.close()

    def _start_by_python(self, covers: Sequence[Mount], channel: int) -> tuple[int, Report]:
        back_end = self._back_end

        def begin(report: int) -> int:
            stdio = [0 if number is None else number for number in self._command.stdio]
            pid = self._inits.take(back_end, [report, channel, *stdio]) if self._inits is not None else 0
            return pid or forked(self._kernel, self.watched(covers, channel), report, back_end.flags)

        try:
            return start_child(begin)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> ShellFailed:
        reason = strerror(error.errno or errno.EIO)
        if self._back_end.flags:
            reason = f"cannot make namespaces: {reason}"
        return ShellFailed(os.fsencode(reason))

    def watched(self, covers: Sequence[Mount], channel: int) -> Become:
        """Return what a fork does to be the shell or to stand for it."""
        return self._back_end.watched(self._command, covers, channel, self._watch_self)

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
