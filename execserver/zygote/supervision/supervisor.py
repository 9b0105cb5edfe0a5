"""The life of a supervisor: one process per shell call, a plain fork of the zygote, outside every view.

It starts the shell, decides about every program that is started in there, runs what may run outside, and at
the end of the shell ends everything that is left.  To the zygote it reports as the first process of a sandbox
does: RUNNING or FAILED, then ENDED with the shell's wait status.  SIGTERM ends the call.  When it dies
itself, whatever the cause, the shell dies with it, and the zygote kills what else it leaves.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _socket
import fcntl
import gc
import os
import select
import time

from execserver.sandbox import privileges
from execserver.zygote.init import ENDED, FAILED, RUNNING, WAIT_STATUS, take_stdio
from execserver.zygote.libc import Libc
from execserver.zygote.reaper import own_children, reap_ended
from execserver.zygote.supervision.asking import Asking
from execserver.zygote.supervision.complaints import Complaints
from execserver.zygote.supervision.desk import Desk
from execserver.zygote.supervision.install import receive_listener
from execserver.zygote.supervision.notified import Notified
from execserver.zygote.supervision.notify import Listener
from execserver.zygote.supervision.outside import forbid_cores
from execserver.zygote.supervision.records import NOTIFY
from execserver.zygote.supervision.watch import Watch
from execserver.zygote.supervision.wrapper_end import WrapperEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.rules.policy import Policy
    from execserver.sandbox.syscalls import Kernel
    from execserver.zygote.init import Command
    from execserver.zygote.supervision.environment import OutsideEnvironment
    from execserver.zygote.supervision.outside import Outside
    from execserver.zygote.supervision.records import Supervision
    from execserver.zygote.supervision.trapped_exit import TrappedExit

    # Starts the shell, which sends its listener through the channel of that number; returns its pid, and its
    # report, or -1 where the process is the shell itself.
    StartShell = Callable[[int], tuple[int, int]]

_REPORT = 3
_QUESTIONS = 4
_REPORT_BYTES = 4096
_PR_SET_PDEATHSIG = 1
_SIGKILL, _SIGTERM, _SIGCHLD = 9, 15, 17
_END_S = 2.5  # for everything to die that was killed; what does not, the zygote kills again
_LOOK_MS = 50
_FAILED_STATUS = 1
_EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))


class Changes:
    """Tells that children have changed; owns a signalfd."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.are_there = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def note(self) -> None:
        """Take the signals that came, and remember that some did."""
        self.are_there = True
        try:
            os.read(self.descriptor, 4096)  # of one signal only two are ever pending
        except BlockingIOError:
            pass

    def wait(self, milliseconds: float) -> None:
        """Wait until a child or a traced thread changes, for a time at most."""
        if self._poll.poll(milliseconds):
            self.note()


class Tools:
    """What a supervisor works with and is made before its fork: each page it writes to is copied for it."""

    __slots__ = ("environment", "leave", "outside")

    def __init__(self, outside: Outside, leave: TrappedExit, environment: OutsideEnvironment) -> None:
        self.outside = outside
        self.leave = leave
        self.environment = environment


class Supervisor:
    """One call being supervised, in a process that has been made ready for it."""

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
        self._watch = watch = Watch()
        self._changes = Changes(libc.block_and_watch((), _SIGCHLD))
        watch.add(self._changes.descriptor, self._changes.note)
        watch.add(libc.block_and_watch((), _SIGTERM), self._stop)
        self._leave = tools.leave
        self._leave.await_change = self._changes.wait
        self._complaints = Complaints(kernel, watch)
        asking = Asking(_QUESTIONS, watch)
        self._desk = Desk(policy, supervision.full_path, tools.environment, tools.outside, asking, watch)
        self._source: Notified | WrapperEnd | None = None
        self._is_notified = supervision.interception == NOTIFY
        self._shell = 0
        self._told_by = -1  # the report of a sandbox's first process
        self._told = b""
        self._is_running = False
        self._status: int | None = None

    def run(self, start_shell: StartShell) -> None:
        """Start the shell and stay until it, and all that came of it, has ended."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        if self._is_notified:
            self._watch.add(ours.fileno(), lambda: self._take_listener(ours))
        else:
            self._source = WrapperEnd(ours, self._desk, self._watch)
        self._shell, self._told_by = start_shell(theirs.fileno())
        theirs.close()
        _leave_stdio()
        forbid_cores()  # outside; the shell has its own limit by now
        if self._told_by >= 0:
            self._watch.add(self._told_by, self._hear)
        else:
            if self._is_notified:
                self._take_listener(ours)
            self._runs()
        while self._status is None:
            self._watch.turn()
            while self._changes.are_there and self._status is None:
                self._reap()  # which may take the signal of further ends
            if self._source is not None:
                self._source.go_on()
        self._end_all()
        os.write(_REPORT, ENDED + WAIT_STATUS.pack(self._status))

    def _take_listener(self, channel: _socket.socket) -> None:
        if channel.fileno() < 0:
            return
        descriptor = receive_listener(channel)
        if descriptor is not None:
            if self._source is not None:
                self._source.close()  # of a program that could not be executed
            listener = Listener(descriptor, self._kernel.machine)
            self._source = Notified(
                *(self._kernel, listener, self._leave, self._complaints, self._desk, self._watch),
                self._of_ours,
            )
        elif self._is_running:
            self._watch.drop(channel.fileno())
            channel.close()

    def _hear(self) -> None:
        """Take what the first process of a sandbox has said."""
        try:
            told = os.read(self._told_by, _REPORT_BYTES)
        except BlockingIOError:
            return
        if not told:
            self._watch.drop(self._told_by)
        elif self._is_running:
            self._told += told
        elif told[:1] == RUNNING:
            self._told = told[1:]
            self._runs()
        else:
            raise ShellFailed(told[1:])

    def _runs(self) -> None:
        if self._source is None:
            raise ShellFailed(b"the shell runs unwatched")
        self._is_running = True
        os.write(_REPORT, RUNNING)

    def _stop(self) -> None:
        self._status = _SIGKILL

    def _reap(self) -> None:
        self._changes.are_there = False
        for pid, status in reap_ended():
            if pid == self._shell:
                self._shell_ended(status)
            elif not self._desk.ended(pid, status):
                self._complaints.ended(pid)

    def _shell_ended(self, status: int) -> None:
        if self._status is not None:
            return
        if self._told_by >= 0:
            self._hear()  # its last word came before its end, but perhaps after the last look
        if not self._is_running and self._told == b"":
            raise ShellFailed(b"its first process was killed")
        if self._told[:1] == ENDED and len(self._told) == 1 + WAIT_STATUS.size:
            status = WAIT_STATUS.unpack_from(self._told, 1)[0]
        self._status = status

    def _end_all(self) -> None:
        """Kill and reap whatever this process is the parent of, or becomes it meanwhile."""
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
) -> None:
    """Be the supervisor of a call until its end; never returns.

    The shell's stdio is this process's when `start_shell` is called.  The first `of_ours` programs that are
    started are the shell, the last of them, and what builds its sandbox.
    """
    is_done = False
    try:
        _begin(kernel, libc, command, questions, report)
        try:
            Supervisor(kernel, libc, policy, supervision, tools, of_ours).run(start_shell)
        except ShellFailed as failed:
            os.write(_REPORT, FAILED + failed.args[0])
        is_done = True
    finally:
        # A fault of ours must not look like an end of the shell's own.
        if not is_done:
            os.kill(os.getpid(), _SIGKILL)
        os._exit(0)


def _begin(kernel: Kernel, libc: Libc, command: Command, questions: int, report: int) -> None:
    """Tie this process to its starter, and keep the shell's stdio, the report and the questions only."""
    privileges.set_dumpable(kernel, False)
    kernel.call("prctl", _PR_SET_PDEATHSIG, _SIGTERM)
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        os._exit(_FAILED_STATUS)  # the starter is gone already
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _EVERY_SIGNAL)
    os.setsid()
    libc.set_child_subreaper()
    report, questions = _above(report), _above(questions)
    take_stdio(command)
    for number in (0, 1, 2):
        os.set_inheritable(number, False)
    os.dup2(report, _REPORT, inheritable=False)
    os.dup2(questions, _QUESTIONS, inheritable=False)
    privileges.close_from(kernel, _QUESTIONS + 1)
    os.set_blocking(_REPORT, True)
    gc.freeze()
    gc.enable()


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _QUESTIONS + 1)


def _leave_stdio() -> None:
    """Let go of the shell's stdio: its pipes end when the shell and what it started end."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(null, number, inheritable=False)
    os.close(null)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, _SIGKILL)
    except OSError:
        pass
