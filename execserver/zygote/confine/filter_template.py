"""The filter template: a child of the zygote that has a seccomp filter and forks processes that inherit it.

Installing a filter takes 0.4 to 0.9 ms, mostly for memory that the kernel makes executable; inheriting one
takes no time.  So for each of two filters there is a process that has it, only forks, and ends when it was
idle for a while.  The processes it forks are children of the zygote like any other, its spare init included.
It runs our code only, and has no descriptor but its socket, that of its spare, and the mount table.

There are two kinds: this one, in Python, and a compiled one (`compiled_template`), which is quicker.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import struct

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.kernel.namespaces import Identity, flags_for, fork_into
from execserver.sandbox.plan import FILTER_OPEN, FILTER_RESTRICTED, SandboxPlan
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.confine.child import milliseconds_until, tying_to_parent
from execserver.zygote.confine.command import command_of
from execserver.zygote.confine.handed_start import handed, start_in
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.confine.sandbox_init import Setup, run_command
from execserver.zygote.confine.spare_init import SpareInit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount
    from execserver.sandbox.rootfs.recorded import RecordedRoot
    from execserver.zygote.confine.command import Command
    from execserver.zygote.libc import Libc
    from execserver.zygote.records import SpawnRequest

    Message = tuple[bytes, Sequence[int]]  # a record, and descriptors
    _Given = tuple[SandboxPlan, RecordedRoot | None, int, Sequence[Mount], Command]

NAME = b"execserver-view"  # in lists of processes, the name of the template and of each init that it forks
IDLE_MS = 30_000
QUIET_MS = 50  # without a start; one in a row of starts comes sooner after the one before
READY = b"R"
SOCKET = 3
_PR_SET_NAME = 15
_SIGKILL = 9
_ANSWER = struct.Struct("<ii")  # pid, errno


# Not the filter of a managed proxy: under it a sandbox init could not reach the proxy bridge.
INHERITED = (FILTER_RESTRICTED, FILTER_OPEN)


class NotForked(OSError):
    """The process was asked, and forked nothing."""


class Template:
    """The zygote's side of any filter template, which is started at need, and again after it has ended."""

    def __init__(self, kernel: Kernel, syscall_filter: str = FILTER_RESTRICTED) -> None:
        self._kernel = kernel
        self._filter = syscall_filter
        self._socket: _socket.socket | None = None
        self._pid = 0

    def ask(self, messages: Callable[[], Sequence[Message]], deadline_ns: int) -> int:
        """Have the process fork a sandbox init; return its pid.

        `messages` is called for what to send, again if the process has ended for want of work.  Raises
        OSError as a fork does, and ETIMEDOUT after the deadline.  Then nothing runs, or only an init that
        ends because nobody reads its report; nothing at all after NotForked.
        """
        answer = b""
        while len(answer) != _ANSWER.size:
            answer = self._ask(messages, milliseconds_until(deadline_ns))
            # One that ended for want of work had not read the request.  One that ended otherwise may have
            # forked already, and a second try would start the command twice.
            if len(answer) != _ANSWER.size and not self._ended_idle():
                raise OSError(errno.ECHILD, os.strerror(errno.ECHILD))
        pid, error = _ANSWER.unpack(answer)
        if error:
            raise NotForked(error, os.strerror(error))
        return int(pid)

    def start(self) -> bool:
        """Start the process unless it runs; return whether there is one now."""
        try:
            return self._socket is not None or self._start()
        except OSError:
            return False  # no process or descriptor is to be had; the start without the template reports it

    def _start(self) -> bool:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            tie, pid = tying_to_parent(self._kernel), os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                tie()
                self._confine(theirs)
                self._become()
            finally:
                os._exit(1)
        theirs.close()  # else its end would not be seen here
        if ours.recv(1) != READY:
            ours.close()
            return False
        self._socket, self._pid = ours, pid
        return True

    def _ask(self, messages: Callable[[], Sequence[Message]], patience_ms: int | None) -> bytes:
        """Return the answer to a request; b"" if the process has ended instead."""
        if not self.start() or self._socket is None:
            raise NotForked(errno.EAGAIN, os.strerror(errno.EAGAIN))
        try:
            for data, descriptors in messages():
                send_record(self._socket, data, descriptors)
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            # It hangs, and its next answer would be taken for that to a later request.
            if not poll.poll(patience_ms):
                if self._pid:
                    os.kill(self._pid, _SIGKILL)
                # At once: the next start must not be sent to what is about to die.
                self._socket.close()
                self._socket = None
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return self._socket.recv(_ANSWER.size)
        except (BrokenPipeError, ConnectionResetError):
            return b""

    def _ended_idle(self) -> bool:
        """Forget a process that has ended; return whether it was idle, so that nothing was done."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        if not self._pid:
            return True  # the event loop has reaped it, so it ended before it was asked
        try:
            return os.waitpid(self._pid, 0)[1] == 0
        except ChildProcessError:
            return True

    def forget(self, pid: int) -> None:
        """Take the end of a child that was reaped: its number may soon be another one's."""
        if pid == self._pid:
            self._pid = 0

    # The process itself.

    def _become(self) -> None:
        """Be the process, confined and with its socket as SOCKET; never returns."""
        raise NotImplementedError

    def _confine(self, sock: _socket.socket) -> None:
        # Nothing of the zygote stays: neither its socket, nor reports of other sandboxes, which would not end
        # while a copy is open here.
        os.dup2(sock.detach(), SOCKET, inheritable=False)
        privileges.close_from(self._kernel, SOCKET + 1)
        self._kernel.call("prctl", _PR_SET_NAME, NAME)
        # Here, since the filter refuses keyctl to the processes forked later.
        privileges.leave_session_keyring(self._kernel)
        privileges.no_new_privileges(self._kernel)
        seccomp.install(self._kernel, self._filter)
        # Whoever inherits from here does not install a filter, so it must be there.
        seccomp.check(self._kernel)


class FilterTemplate(Template):
    """The one in Python."""

    def __init__(self, kernel: Kernel, libc: Libc, syscall_filter: str = FILTER_RESTRICTED) -> None:
        super().__init__(kernel, syscall_filter)
        self._libc = libc
        self._plans = PlanCache(kernel, filtered=True)
        self._identity = Identity()  # of the zygote, too
        # Of the process itself.
        self._spare: SpareInit
        self._due: tuple[int, bytes] | None = None  # what the next spare is made for

    def fork(
        self, request: SpawnRequest, descriptors: Sequence[int], extra: Sequence[Mount], report: int
    ) -> int:
        """Fork the sandbox init of a request, which reports to `report`; return its pid.  Raises as `ask`."""
        data = handed(request, extra)
        return self.ask(lambda: [(data, [report, *descriptors])], request.deadline_ns)

    # The process itself.

    def _become(self) -> None:
        # With family, type and protocol given, Python does not ask the kernel for them: the filter refuses
        # getsockopt and getsockname.
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, SOCKET)
        # A collection writes to every object, and the forks would have to copy these pages.
        gc.collect()
        gc.freeze()
        send_record(sock, READY)
        self._spare = SpareInit(self._kernel, self._become_init, sibling=True)
        poll = select.poll()
        poll.register(SOCKET, select.POLLIN)
        while True:
            if poll.poll(IDLE_MS if self._due is None else QUIET_MS):
                received = receive_record(sock)
                if received is None:
                    break
                self._serve(sock, *received)
            elif self._due is None:
                break
            else:
                self._make_spare()
        os._exit(0)

    def _serve(self, sock: _socket.socket, data: bytes, descriptors: list[int]) -> None:
        request, extra = start_in(data)
        record = request.confinement.plan
        flags, recorded = flags_for(self._plans.plan(record)), self._plans.recorded(record)
        pid, mapped, error = 0, False, 0
        if recorded is not None:
            pid = self._spare.take(flags, recorded, data, descriptors)
        if not pid:
            given = self._given(request, extra, descriptors)  # before the fork, which pays for each page
            try:
                # As a sibling (CLONE_PARENT): the zygote is its parent, reaps it, and its death ends it.
                pid, mapped = fork_into(self._kernel, flags, sibling=True)
            except OSError as failure:
                error = failure.errno or errno.EIO
            if pid == 0 and not error:
                gc.disable()
                self._run(given, mapped)
        # The init has its copies; those here would keep its report and its pipes from ending.
        for descriptor in descriptors:
            os.close(descriptor)
        send_record(sock, _ANSWER.pack(pid, error))
        if recorded is not None:
            self._due = flags, data
            # With one processor a spare that is made now delays the command, and saves nothing in a row of
            # starts.  Once nothing else is to do, it costs nobody anything.
            if len(os.sched_getaffinity(0)) > 1:
                self._make_spare()

    def _make_spare(self) -> None:
        if self._due is not None:
            (flags, data), self._due = self._due, None
            self._spare.make(flags, self._plans.all_recorded(), data)

    def _given(self, request: SpawnRequest, extra: Sequence[Mount], descriptors: Sequence[int]) -> _Given:
        """Return what the sandbox init of a request gets."""
        record = request.confinement.plan
        report, *others = descriptors
        command = command_of(request, others)
        command.make_ready()
        return self._plans.plan(record), self._plans.recorded(record), report, extra, command

    def _run(self, given: _Given, mapped: bool) -> None:
        """Be that init, in namespaces of its own; never returns."""
        plan, recorded, report, extra, command = given
        own = self._identity if mapped else None
        setup = Setup(self._kernel, plan, own, report, extra, recorded, filtered=True)
        run_command(setup, self._libc, command)

    def _become_init(self, data: bytes, descriptors: Sequence[int], mapped: bool) -> None:
        """Be the init of a request as a spare; without descriptors only go through it."""
        request, extra = start_in(data)
        given = self._given(request, extra, descriptors or (0, 0, 0, 0)[not request.pipe_stdin :])
        if descriptors:
            self._run(given, mapped)
