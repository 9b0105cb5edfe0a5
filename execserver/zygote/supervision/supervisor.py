"""The exec supervisor: one process per shell call, a plain fork of the zygote outside every sandbox root.

It starts the shell, decides about every program that is started inside, starts what may run outside, and ends
everything that is left when the shell has ended: at once when the server says that the outputs are over, else
after LINGER_S.  To the zygote it reports as a sandbox init does: RUNNING or
FAILED, then ENDED with the shell's wait status.  SIGTERM ends the call.  When the supervisor dies, whatever
the cause, the shell dies with it, and the zygote kills what else it leaves.
"""

from __future__ import annotations

import _socket
import gc
import itertools
import os
import select
import time

from execserver.zygote.confine import child
from execserver.zygote.confine.child import KEPT, REPORT
from execserver.zygote.confine.command import take_stdio
from execserver.zygote.libc import Libc
from execserver.zygote.reaper import changed_children, own_children, reap_ended
from execserver.zygote.supervision.asking import Asking
from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.exec_broker import ExecBroker
from execserver.zygote.supervision.outside import forbid_cores
from execserver.zygote.supervision.records import LINGER_S, NOTIFY
from execserver.zygote.supervision.refusal_messages import RefusalMessages
from execserver.zygote.supervision.stand_in.stand_ins import StandIns
from execserver.zygote.supervision.trap.install import receive_listener
from execserver.zygote.supervision.trap.listener_source import ListenerSource
from execserver.zygote.supervision.trap.notify import Listener
from execserver.zygote.supervision.wrapper.wrapper_end import WrapperEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.rules.policy import Policy
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.confine.child import Report
    from execserver.zygote.confine.command import Command
    from execserver.zygote.supervision.environment import OutsideEnvironment
    from execserver.zygote.supervision.outside import Outside
    from execserver.zygote.supervision.records import Supervision
    from execserver.zygote.supervision.trap.forced_exit import ForcedExit

    # Starts the shell, which sends its listener through the channel, a descriptor; returns pid and report of
    # the child that is the shell or stands for it.
    StartShell = Callable[[int], tuple[int, Report]]

_QUESTIONS = KEPT
_SIGKILL, _SIGTERM, _SIGCHLD = 9, 15, 17
_END_S = 2.5  # for everything that was killed to die; what is left then, the zygote kills again
_LOOK_MS = 50  # between two looks at the children
_CHANGES_AT_ONCE = 256


class Changes:
    """Reports changes of children and traced threads; owns a signalfd for SIGCHLD."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.are_there = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def note(self) -> None:
        """Take the signals that came, and remember that some did."""
        self.are_there = True
        try:
            # One read takes all: of one signal at most two are pending, the thread's and the process's.
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            pass

    def wait(self, milliseconds: float) -> None:
        """Wait until a child or a traced thread changes, for so long at most."""
        if self._poll.poll(milliseconds):
            self.note()


class Tools:
    """What is made before the fork of a supervisor: each page that a fork writes to is copied for it."""

    __slots__ = ("environment", "leave", "outside")

    def __init__(self, outside: Outside, leave: ForcedExit, environment: OutsideEnvironment) -> None:
        self.outside = outside
        self.leave = leave
        self.environment = environment


class Supervisor:
    """One supervised call, in a process that `_begin` has made ready.

    `of_ours` is how many programs may run unasked at first: the shell and what builds its sandbox.
    """

    def __init__(
        self,
        kernel: Kernel,
        libc: Libc,
        policy: Policy,
        supervision: Supervision,
        tools: Tools,
        of_ours: int,
    ) -> None:
        self._kernel = kernel
        self._of_ours = of_ours
        self._loop = loop = EventLoop()
        self._changes = Changes(libc.block_and_watch((), _SIGCHLD))
        loop.add(self._changes.descriptor, self._changes.note)
        # The parent-death signal of this process, too: so the call ends in order when the zygote dies.
        loop.add(libc.block_and_watch((), _SIGTERM), self._stop)
        self._leave = tools.leave
        self._leave.await_change = self._changes.wait
        self._messages = RefusalMessages(kernel, loop)
        self._stand_ins = StandIns(kernel, loop)
        self._asking = asking = Asking(_QUESTIONS, loop)
        self._broker = ExecBroker(
            policy, supervision.full_path, tools.environment, tools.outside, asking, loop
        )
        self._source: ListenerSource | WrapperEnd | None = None
        self._is_notified = supervision.interception == NOTIFY
        # Through it comes the listener, or the handshakes of wrappers.  No datagram socket: through one of
        # these a process inside could reach any named socket of the machine.
        self._channel, self._far_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._shell = 0
        self._report: Report | None = None
        self._is_running = False
        self._status: int | None = None
        self._lingers = False  # the shell has ended, others have not

    @property
    def _is_over(self) -> bool:
        return self._status is not None and not self._lingers

    def run(self, start_shell: StartShell) -> None:
        """Start the shell and stay until it, and all that came of it, has ended."""
        if self._is_notified:
            self._loop.add(self._channel.fileno(), self._take_listener)
        else:
            self._source = WrapperEnd(self._channel, self._broker, self._loop)
        self._shell, self._report = start_shell(self._far_end.fileno())
        self._far_end.close()  # else the end of those inside would not be seen
        _leave_stdio()
        forbid_cores()  # for what runs outside; the shell has been forked with the old limit
        self._loop.add(self._report.descriptor, self._hear)
        while not self._is_over:
            self._loop.turn()
            # `ForcedExit` waits on the same signalfd, and may take the signal of a child's end from it.  So
            # the flag counts, not whether the signalfd is ready.
            while self._changes.are_there and not self._is_over:
                self._reap()
            if self._lingers and self._asking.has_ended:
                self._end_lingering()
            if self._source is not None:
                self._source.go_on()
        self._end_all()
        assert self._status is not None
        child.tell_ended(self._status)

    def _take_listener(self) -> None:
        if self._channel.fileno() < 0:
            return  # closed below
        descriptor = receive_listener(self._channel)
        if descriptor is not None:
            if self._source is not None:
                self._source.close()  # that of a program which could not be executed
            self._source = self._listening(descriptor)
        elif self._is_running:
            # The end of the channel, which would be ready for ever.
            self._loop.drop(self._channel.fileno())
            self._channel.close()

    def _listening(self, descriptor: int) -> ListenerSource:
        return ListenerSource(
            *(self._kernel, Listener(descriptor, self._kernel), self._leave, self._messages, self._broker),
            *(self._loop, self._stand_ins, self._of_ours),
        )

    def rehearse(self) -> None:
        """Touch what a call does until its shell runs; the object is of no use afterwards."""
        if self._is_notified:
            self._listening(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)).rehearse()
        self._reap()

    def _hear(self) -> None:
        """Take the first report of the shell's child; raise ShellFailed when it failed, or runs unwatched."""
        report = self._report
        assert report is not None
        self._loop.drop(report.descriptor)
        reason = report.hear()
        if reason is not None:
            self._begin_again(report, reason)
            return
        if self._source is None and self._is_notified:
            self._take_listener()  # sent before that report, but perhaps after the last look
        # A shell that could not be started has ended already, and needs no watching.
        if self._source is None and not report.has_ended:
            raise ShellFailed(b"the shell runs unwatched")
        self._is_running = True
        child.tell_running()
        self._loop.add(report.descriptor, self._hear_more)
        self._take_end_before_others()  # if it came along with that report

    def _begin_again(self, failed: Report, reason: bytes) -> None:
        """Start the shell by Python, once, if the compiled init could not; else raise ShellFailed."""
        again = failed.take_again()
        if again is None:
            raise ShellFailed(reason)
        failed.end(0)
        self._shell, self._report = again()
        self._loop.add(self._report.descriptor, self._hear)

    def _hear_more(self) -> None:
        assert self._report is not None
        # At most one word comes, and the end of the pipe would be ready for ever.
        self._loop.drop(self._report.descriptor)
        self._take_end_before_others()

    def _take_end_before_others(self) -> None:
        """Take the shell's end from a sandbox init that stays because others are left."""
        assert self._report is not None
        status = self._report.hear_of_others()
        if status is not None and self._status is None:
            self._status = status
            self._linger()

    def _linger(self) -> None:
        """Give those whom the shell has left behind time for their output."""
        self._lingers = True
        self._asking.tell_shell_ended()
        self._loop.after(LINGER_S, self._end_lingering)

    def _end_lingering(self) -> None:
        self._lingers = False

    def _stop(self) -> None:
        self._lingers = False
        if self._status is None:
            self._status = _SIGKILL  # the wait status of a process that was killed by it

    def _reap(self) -> None:
        self._changes.are_there = False
        left = _CHANGES_AT_ONCE
        for pid, status in itertools.islice(changed_children(), left):
            left -= 1
            # A traced thread may be a child as well, even the shell: its end is heard of once, for both.
            is_traced = self._stand_ins.changed(pid, status)
            if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
                if not is_traced:
                    self._broker.stopped(pid)
            elif pid == self._shell:
                self._shell_ended(pid, status)
            elif not self._broker.ended(pid, status):
                self._messages.ended(pid)
        self._broker.look_for_continued()
        if not left:
            self._loop.after(0, self._changes.note)  # who is sent signals all the time holds nobody up
        if self._status is not None:
            self._look_for_others()

    def _look_for_others(self) -> None:
        if not own_children():
            self._end_lingering()
        elif not self._lingers:
            self._linger()

    def _shell_ended(self, pid: int, status: int) -> None:
        if not self._is_running:
            self._hear()  # reported before its end, but perhaps after the last look
            if pid != self._shell:
                return  # another one has taken its place
        assert self._report is not None
        self._loop.drop(self._report.descriptor)
        status = self._report.end(status)
        if self._status is None:
            self._status = status

    def _end_all(self) -> None:
        """Kill and reap all children of this process, and those it gets meanwhile."""
        # It is a subreaper: what a killed child leaves becomes its child, and is found in the next round.
        deadline = time.monotonic() + _END_S
        while children := own_children():
            for pid in children:
                _kill(pid)
            reap_ended()
            if time.monotonic() > deadline:
                return
            if own_children():
                self._changes.wait(_LOOK_MS)


class ShellFailed(Exception):
    """The shell could not be started; the one argument is the reason, as bytes."""


def supervise(
    kernel: Kernel,
    libc: Libc,
    policy: Policy,
    supervision: Supervision,
    command: Command,
    questions: int,
    report: int,
    tools: Tools,
    start_shell: StartShell,
    of_ours: int = 1,
    beside: int = -1,
    below: int = 0,
) -> None:
    """Be the supervisor of a call until its end; never returns.

    When `start_shell` is called, this process has the shell's stdio, and `beside`, if it is one, as BESIDE.
    The first `of_ours` programs that are
    started are those that build the sandbox, and last the shell.  Descriptors numbered `below` stay open.
    """
    is_done = False
    try:
        _begin(kernel, libc, command, questions, report, beside, below)
        try:
            Supervisor(kernel, libc, policy, supervision, tools, of_ours).run(start_shell)
        except ShellFailed as failed:
            child.tell_failure(REPORT, failed.args[0])
        is_done = True
    finally:
        # A fault of ours must not look like an end of the shell.
        if not is_done:
            os.kill(os.getpid(), _SIGKILL)
        os._exit(0)


def _begin(
    kernel: Kernel, libc: Libc, command: Command, questions: int, report: int, beside: int, below: int
) -> None:
    """Tie this process to its starter; keep only the shell's stdio, the report and the question socket."""
    # SIGTERM, where others get SIGKILL: what it has started outside must not survive it.
    child.tie(kernel, _SIGTERM)
    child.check_starter(kernel, report)
    libc.set_child_subreaper()
    take_stdio(command)
    for number in (0, 1, 2):
        os.set_inheritable(number, False)
    child.keep_only(kernel, report, questions, beside, below)
    os.set_blocking(REPORT, True)  # `start_child` makes both ends non-blocking
    # It lives as long as the call, so it needs a collector; but what came with the fork is left alone, or its
    # pages would be copied.
    gc.freeze()
    gc.enable()


def _leave_stdio() -> None:
    """Put the null device in place of the shell's stdio, so that its pipes end with those who use them."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(null, number, inheritable=False)
    os.close(null)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        pass  # a set-user-id program, which belongs to another user
