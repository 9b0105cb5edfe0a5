"""The native back end: a fork goes into namespaces of its own and becomes the sandbox init."""

from __future__ import annotations

from execserver.sandbox.kernel.namespaces import flags_for
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.zygote.confine.back_end import BackEnd
from execserver.zygote.confine.child import start_child
from execserver.zygote.confine.command import command_of
from execserver.zygote.confine.sandbox_init import Setup, run_command, run_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.zygote.confine.back_end import Host, Start
    from execserver.zygote.confine.child import Become, Report
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.routing import Routing
    from execserver.zygote.confine.sandbox_init import Before
    from execserver.zygote.confine.sandboxes import Sandboxes
    from execserver.zygote.confinement import Confinement
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest


class Native(BackEnd):
    """Sandbox roots for the commands and file workers of one plan; each process gets its own."""

    has_root = True
    plan: SandboxPlan

    def __init__(self, host: Host, confinement: Confinement) -> None:
        self._host = host
        # The plan cache finds plan and recorded calls by the plan's bytes.
        self._record = confinement.plan
        self.plan = host.plans.plan(confinement.plan)
        self.flags = flags_for(self.plan)
        self._before: Before | None = None

    def route(self, routing: Routing) -> None:
        """Have each sandbox init listen for the proxies of its command."""
        self._before = routing.open

    def make_ready(self) -> None:
        """Have the system calls of the sandbox root recorded, which forks then only replay."""
        self.recorded = self._host.plans.recorded(self._record)

    def command(self, command: Command, covers: Sequence[Mount]) -> Become:
        """Return what a fork does to be the sandbox init, which starts the command."""
        # Read here and not in the fork: each attribute that the fork touches may cost it a copied page.
        kernel, libc, plan = self._host.kernel, self._host.libc, self.plan
        recorded, before = self.recorded, self._before
        return lambda report, identity: run_command(
            Setup(kernel, plan, identity, report, covers, recorded), libc, command, before
        )

    def watched(
        self, command: Command, covers: Sequence[Mount], channel: int, watch: Callable[[], None]
    ) -> Become:
        """Return the same, with the sandbox init watched from the moment at which it starts the command."""
        kernel, libc, plan, recorded = self._host.kernel, self._host.libc, self.plan, self.recorded
        before, start = self._before, _WatchedStart(libc, watch)
        return lambda report, identity: run_command(
            Setup(kernel, plan, identity, report, covers, recorded), libc, command, before, channel, start
        )

    def worker(self, socket: int, serve: Callable[[int], None]) -> Become:
        """Return what a fork does to be the only process of the sandbox root, a file worker."""
        # No recorded calls: those end with the Landlock rules of a command, and a worker takes on its own.
        kernel, plan = self._host.kernel, self.plan
        return lambda report, identity: run_worker(Setup(kernel, plan, identity, report), socket, serve)

    def starter(
        self,
        sandboxes: Sandboxes,
        request: SpawnRequest,
        descriptors: Sequence[int],
        command: Command,
        covers: Sequence[Mount],
        group: int = -1,
    ) -> Start:
        """Have the filter template fork, unless the command is to reach a proxy or begins in a group."""
        # An init that listens passes its sockets on itself, which the filter of a managed proxy would refuse:
        # it installs that itself, 0.37 ms slower.  So it does without a template, or when none can be
        # started; and in a group, into which a spare init could not be moved.
        compiled = None if group >= 0 else sandboxes.compiled_template(self.plan.syscall_filter)
        root = None if compiled is None else sandboxes.compiled_roots.root(self._record)

        def by_python(ends: Sequence[int]) -> tuple[int, Report]:
            parent = None if group >= 0 else sandboxes.filter_template(self.plan.syscall_filter)
            if parent is not None:
                return start_child(lambda report: parent.fork(request, ends, covers, report))
            again = command if ends is descriptors else command_of(request, ends)
            return BackEnd.starter(self, sandboxes, request, ends, again, covers, group)()

        if compiled is None or root is None:
            return lambda: by_python(descriptors)
        plan, deadline_ns = self.plan, request.deadline_ns
        return lambda: compiled.begin(root, plan, command, covers, deadline_ns, by_python)


class _WatchedStart:
    """Starts a command from the sandbox init, which is itself watched from then on.

    Init executes nothing itself, so the supervisor is never asked about it.  A further fork that installs the
    listener's filter would cost more.
    """

    __slots__ = ("_is_watched", "_libc", "_watch")

    def __init__(self, libc: Libc, watch: Callable[[], None]) -> None:
        self._libc = libc
        self._watch = watch
        self._is_watched = False

    def __call__(self, path: bytes, argv: Sequence[bytes], env: Sequence[bytes]) -> int:
        """Start the program; return its pid."""
        # Called once for each candidate in PATH.  A second listener would be refused with EBUSY.
        if not self._is_watched:
            self._is_watched = True
            try:
                self._watch()
            except OSError as error:
                # Not an OSError: that would read as a program that cannot be executed.
                raise RootFailed(f"cannot watch the shell: {error.strerror}") from None
        return self._libc.spawn_in_session(path, argv, env)
