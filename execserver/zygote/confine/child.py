"""A confined child, from both sides: its fork, its tie to the starter, its descriptors and its report.

With every back end, a child that is forked to become a sandbox ends with its starter and leads a session of
its own.  Above stdio it has its report as descriptor 3, perhaps one more descriptor as 4, and no others.  It
reports RUNNING once what it was made for runs, or FAILED with the reason; one that is killed reports nothing.
A child that outlives the command it stands for finally reports ENDED with the command's wait status; where a
supervisor watches, it first reports LEFT with it when others in the sandbox live on.  Where another program
of the child's makes the sandbox, the report names the first process in it behind RUNNING.  A compiled init
may report UNLIKE instead of all that: something was not as recorded, and nothing has run.

The child's side touches as little memory as it can: each page that a fork writes to is copied for it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import ctypes
import errno
import fcntl
import gc
import os
import select
import struct
import time

from execserver.sandbox.kernel import privileges
from execserver.sandbox.kernel.namespaces import Identity, fork_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel

    # Starts a command another time; returns as `start_child`.
    Again = Callable[[], tuple[int, "Report"]]

    # What a fork does with its end of the report, and with who it was if it has a user namespace now.  It
    # never returns.
    Become = Callable[[int, Identity | None], None]

REPORT = 3
KEPT = 4
BESIDE = 5
RUNNING = b"R"
INSIDE = b"I"  # then PID, right behind RUNNING
FAILED = b"F"  # then the reason
UNLIKE = b"U"
LEFT = b"L"  # then WAIT_STATUS; the command has ended, others in its sandbox have not
ENDED = b"E"  # then WAIT_STATUS
WAIT_STATUS = struct.Struct("=i")
PID = struct.Struct("=i")

EXIT_NOT_PREPARED = 1
# All but the two numbers the C library keeps for itself.
EVERY_SIGNAL = tuple(number for number in range(1, 65) if number not in (32, 33))

_KILLED = b"its first process was killed"
_TOO_LATE = b"the view took too long to build"
_REASON_BYTES = 3072  # below PIPE_BUF, so the pipe takes it as a whole
_REPORT_BYTES = 4096
_SIGNAL_MASK = struct.pack("=Q", sum(1 << number - 1 for number in EVERY_SIGNAL))
_SET_MASK = 2
_SIGKILL = 9
_END_MS = 1000  # for the kernel to end a namespace, which takes some milliseconds
_POLL = struct.Struct("=ihh")


# The child's side.


def tie(kernel: Kernel, death_signal: int = _SIGKILL) -> None:
    """Have this process end with its starter and lead a session; block every signal.

    The starter may have ended already, so the caller calls `check_starter` next.
    """
    # Programs of the same user must neither trace the process that builds a sandbox nor open its descriptors.
    privileges.set_dumpable(kernel, False)
    privileges.die_with_parent(kernel, death_signal)
    kernel.call("rt_sigprocmask", _SET_MASK, _SIGNAL_MASK, None, len(_SIGNAL_MASK))
    kernel.run(os.setsid)


def check_starter(kernel: Kernel, report: int) -> None:
    """Raise OSError if the starter has ended already: the kernel sends nothing for that."""
    # The starter's pid means nothing in a new pid namespace.  It lives if it holds its end of the pipe.
    watched = ctypes.create_string_buffer(_POLL.pack(report, 0, 0), _POLL.size)
    if kernel.call("ppoll", watched, 1, bytes(16), None, 0):
        raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))


def place(report: int, kept: int = -1) -> int:
    """Move the report to REPORT and the descriptor `kept`, if there is one, to KEPT; return REPORT."""
    if kept >= 0:
        # First both away from 3 and 4: each may have the number that the other one gets.
        report, kept = _above(report), _above(kept)
        os.dup2(kept, KEPT, inheritable=False)
    if report != REPORT:
        os.dup2(report, REPORT, inheritable=False)
    return REPORT


def keep_only(kernel: Kernel, report: int, kept: int = -1, beside: int = -1, below: int = 0) -> int:
    """Do as `place` does, and close everything else above stdio; with a `kept`, `beside` becomes BESIDE.

    What is numbered `below` stays, too.
    """
    if beside >= 0:
        beside = fcntl.fcntl(beside, fcntl.F_DUPFD_CLOEXEC, BESIDE + 1)
    place(report, kept)
    if beside >= 0:
        os.dup2(beside, BESIDE, inheritable=False)
    last = BESIDE if beside >= 0 else KEPT if kept >= 0 else REPORT
    privileges.close_from(kernel, max(last + 1, below))
    return REPORT


def open_null(number: int) -> None:
    """Put the null device in the place of a descriptor."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, number)
    os.close(null)


def tell_running(inside: int = 0) -> None:
    """Report that the command, worker or function of this child runs.

    `inside` is the pid of the first process in a sandbox that another program has made, 0 without one.
    """
    os.write(REPORT, RUNNING + INSIDE + PID.pack(inside) if inside else RUNNING)


def tell_ended(status: int) -> None:
    """Report the wait status of the command that ran."""
    os.write(REPORT, ENDED + WAIT_STATUS.pack(status))


def tell_left(status: int) -> None:
    """Report the wait status of the command, which has ended and left others behind."""
    os.write(REPORT, LEFT + WAIT_STATUS.pack(status))


def tell_unstarted(code: int) -> None:
    """Report a command that could not be started as one that ended at once with an exit code."""
    # In one write: a supervisor that has no listener yet accepts only a shell that has ended already.
    os.write(REPORT, RUNNING + ENDED + WAIT_STATUS.pack(code << 8))


def tell_failure(report: int, reason: bytes) -> None:
    """Report that nothing runs, and why."""
    try:
        os.write(report, FAILED + reason[:_REASON_BYTES])
    except OSError:
        pass  # the starter is gone


def tying_to_parent(kernel: Kernel) -> Callable[[], None]:
    """Return what a fork of this process calls to die with it; for helpers, which have no report."""
    parent = os.getpid()

    def tie_to_it() -> None:
        privileges.die_with_parent(kernel)
        # The kernel sends nothing for a parent that had ended before.
        if os.getppid() != parent:
            os._exit(EXIT_NOT_PREPARED)

    return tie_to_it


def _above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, KEPT + 1)


# The starter's side.


class Report:
    """A child's report, read by its starter, which owns the non-blocking descriptor until `end`."""

    __slots__ = ("_again", "_held", "_rest", "descriptor", "inside")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._held: Sequence[int] = ()
        self._again: Again | None = None
        self.inside = 0  # the pid of a first process that may outlive the child, while its end is unknown
        self._rest = b""

    def hold(self, held: Sequence[int], again: Again | None = None) -> None:
        """Own descriptors until the first report is heard; `again` makes the start again after UNLIKE."""
        self._held, self._again = held, again

    def take_again(self) -> Again | None:
        """Return, once, what starts the command again if this child has reported UNLIKE; else None.

        The descriptors held then belong to who makes the call.
        """
        again, self._again = self._again, None
        if again is not None:
            self._held = ()
        return again

    @property
    def has_ended(self) -> bool:
        """True when the child reported with RUNNING that the command has already ended."""
        return self._rest[:1] == ENDED

    def hear(self) -> bytes | None:
        """Take the first report, which has come or never will; return None if all runs, else the reason.

        A child that failed ends by itself.
        """
        told = self._read()
        if told != UNLIKE:
            self._release()
        if told[:1] == RUNNING:
            self._rest = told[1:]
            if self._rest[:1] == INSIDE:
                (self.inside,) = PID.unpack_from(self._rest, 1)
                self._rest = self._rest[1 + PID.size :]
            return None
        return told.removeprefix(FAILED).strip() or _KILLED

    def await_first_word(self, pid: int, patience_ms: int) -> bytes | None:
        """Wait for the first report of a child for `patience_ms`, then kill it; return as `hear` does."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if poll.poll(patience_ms):
            return self.hear()
        os.kill(pid, _SIGKILL)
        return _TOO_LATE

    def hear_of_others(self) -> int | None:
        """Take what has come since; return the command's wait status if it has ended and others have not."""
        self._rest += self._read()
        return self._status(LEFT)

    def end(self, status: int) -> int:
        """Close the report of a reaped child; return the wait status it reported, or else its own."""
        # All that it reported is in the pipe before it can be reaped.
        self._rest += self._read()
        os.close(self.descriptor)
        self._release()
        told = self._status(ENDED)
        if told is None:
            told = self._status(LEFT)
        if told is None:
            return status
        self.inside = 0
        return told

    def _release(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        self._held, self._again = (), None

    def _status(self, word: bytes) -> int | None:
        """Return the wait status reported with a word."""
        size = 1 + WAIT_STATUS.size
        for start in range(0, len(self._rest) - size + 1, size):
            if self._rest[start : start + 1] == word:
                return int(WAIT_STATUS.unpack_from(self._rest, start + 1)[0])
        return None

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, _REPORT_BYTES)
        except BlockingIOError:
            return b""  # another process still holds the other end, and nothing came


def end_inside(pid: int, patience_ms: int = _END_MS) -> None:
    """End a sandbox by the pid of its first process, of which nobody has said that it has ended.

    Waits for that end, `patience_ms` at most.  It ends with its parent by itself, unless the parent was
    killed before it asked the kernel for that: bubblewrap does not look whether its parent is still there.
    A sandbox that lived on would be nobody's, and could make what was masked once its mask targets are gone.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:  # before Linux 5.3
            _kill_first_of_a_namespace(pid)
        return
    try:
        if _is_first_of_a_namespace(pid):  # else the number is another process's by now
            _signal.pidfd_send_signal(pidfd, _SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(patience_ms)
    except OSError:
        pass  # ended meanwhile
    finally:
        os.close(pidfd)


def _kill_first_of_a_namespace(pid: int) -> None:
    try:
        if _is_first_of_a_namespace(pid):
            os.kill(pid, _SIGKILL)
    except OSError:
        pass  # ended meanwhile


def _is_first_of_a_namespace(pid: int) -> bool:
    with open(f"/proc/{pid}/status", "rb") as file:
        numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == b"1"


def start_child(fork: Callable[[int], int]) -> tuple[int, Report]:
    """Call `fork` with the child's end of a report, for the child's pid; return the pid and the report.

    Raises OSError as `fork` does.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = fork(theirs)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return pid, Report(ours)


def take_default_signals() -> None:
    """Set every signal back to its default."""
    # Ignored signals survive an exec.  The interpreter ignores SIGPIPE and SIGXFSZ, and a server started by
    # nohup, or in the background of a script, ignores some more.
    for number in range(1, _signal.NSIG):
        if _signal.getsignal(number) not in (_signal.SIG_DFL, None):  # None: the C library's own
            _signal.signal(number, _signal.SIG_DFL)


def fork_child(kernel: Kernel, become: Become, flags: int = 0, group: int = -1) -> tuple[int, Report]:
    """Fork a child that calls `become`; return as `start_child`.

    It is in the new namespaces of `flags` and in the control group of the descriptor `group`, if given.
    """
    return start_child(lambda report: forked(kernel, become, report, flags, group))


def forked(kernel: Kernel, become: Become, report: int, flags: int = 0, group: int = -1) -> int:
    """Fork as `fork_child` does, with the child's end of a report; return the pid."""
    identity = Identity()
    pid, mapped = fork_into(kernel, flags, group=group)
    if pid == 0:
        gc.disable()  # a collection writes to every object, and the fork would copy these pages
        try:
            become(report, identity if mapped else None)
        finally:
            os._exit(EXIT_NOT_PREPARED)
    return pid


def milliseconds_until(deadline_ns: int) -> int | None:
    """Return the milliseconds until a deadline of the monotonic clock, for a poll; None if there is none."""
    return max(0, (deadline_ns - time.monotonic_ns()) // 1_000_000) + 1 if deadline_ns else None
