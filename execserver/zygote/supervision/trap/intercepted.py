"""Processes intercepted in their execve: what they want to run, what they have, and how they continue.

Everything is read while the thread waits, and afterwards it is checked that it still waits.  So nothing is
done to or for another process that got its number.  A path means a file in the thread's own root and folder.
Only a program that is the same file outside can run there, and only for a process that nobody traces.
"""

from __future__ import annotations

import errno
import os
import select

from execserver.zygote.supervision.inheritance import Inherited
from execserver.zygote.supervision.stand_in.stand_in import Seized
from execserver.zygote.supervision.trap.callers import (
    GONE,
    INSIDE,
    OUTSIDE,
    Caller,
    Execution,
    Means,
    version_in,
)
from execserver.zygote.supervision.trap.forced_exit import kill_thread
from execserver.zygote.supervision.trap.process_files import (
    MAGIC_LINK,
    found_at,
    inherited_descriptors,
    is_program,
    opened_folder,
    opened_in_root,
    resolved,
)
from execserver.zygote.supervision.trap.process_memory import MANY_POINTERS, Memory
from execserver.zygote.supervision.trap.process_status import Status, death_signal, open_process
from execserver.zygote.supervision.trap.standing import Standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.refusal_messages import RefusalMessages
    from execserver.zygote.supervision.stand_in.stand_in import StandIn
    from execserver.zygote.supervision.stand_in.stand_ins import StandIns
    from execserver.zygote.supervision.trap.callers import Start
    from execserver.zygote.supervision.trap.forced_exit import ForcedExit
    from execserver.zygote.supervision.trap.notify import Listener, Notification

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_KILLED_TEXT = b"Execution failed: the process could not be ended, and was killed\n"


class Intercepted(Caller):
    """A thread that waits in its execve, the notification that stands for it, and its memory, which it owns.

    `always_runs` is the path if that alone had it run inside, and names no other folder.
    """

    def __init__(
        self,
        kernel: Kernel,
        listener: Listener,
        leave: ForcedExit,
        messages: RefusalMessages,
        stand_ins: StandIns,
        shell: Standing | None,
        notification: Notification,
        memory: Memory,
    ) -> None:
        self._kernel = kernel
        self._listener = listener
        self._leave = leave
        self._messages = messages
        self._stand_ins = stand_ins
        self._shell = shell
        self._notification = notification
        self.tid = notification.tid
        self._path_end = 0  # the address of the NUL behind its path
        self._status: Status | None = None
        self._free_number = 0  # no descriptor of its own has it
        self._start: Start | None = None  # of the program, once it may be started
        self._stand_in: StandIn | None = None
        self._owed: int | None = None  # the exit status for when it asks again
        self._memory = memory
        self.always_runs = b""
        self._workdir = b""
        self._there: os.stat_result | None = None  # the program, if it is the same outside
        self._env_at = 0
        self._folder = _AT_FDCWD
        self._itself = False  # the program is an open file, not a path
        self.alive_fd = -1
        self.execution: Execution | None = None

    @property
    def is_interrupted(self) -> bool:
        """Return whether a signal has ended the wait of a thread that lives and is held by the broker."""
        is_traced = self._stand_in is not None and not self._stand_in.is_over
        if self.alive_fd < 0 or is_traced or self._listener.is_waiting(self._id):
            return False
        poll = select.poll()
        poll.register(self.alive_fd, select.POLLIN)
        return not poll.poll(0)

    def ask_again(self, other: Intercepted) -> bool:
        """Take the place of `other`'s notification, if the same thread has made the same call again."""
        mine, theirs = self.execution, other.execution
        if mine is None or theirs is None or (mine.file, mine.argv) != (theirs.file, theirs.argv):
            return False
        # The decision, or the program outside, is about `mine`; its result answers the new notification.
        self._notification, self._env_at, self._path_end = other._notification, other._env_at, other._path_end
        other.forget()
        if self._start is not None and self._stand_in is not None and self._stand_in.is_over:
            self.halt(self._start)
        if self._owed is not None:
            self.exit(self._owed)
        return True

    def forget_if_dead(self) -> None:
        """Close everything of a thread that is owed an exit status and will not ask for it."""
        if self._owed is not None and not self.is_interrupted and not self._listener.is_waiting(self._id):
            self._close()

    def read(self, always_runs: Callable[[bytes], bool] | None = None) -> Execution | None:
        """Return what the thread wants to run; None if it continues, or is gone, without a decision.

        It continues, too, with a file that `always_runs` whatever its arguments are: these are not read.
        """
        try:
            execution = self._read(always_runs)
        except OSError as error:
            # What cannot be read cannot be judged, so it does not run.
            self.fail(error.errno or errno.EFAULT)
            return None
        if execution is None:
            self.run()
        self.execution = execution
        return execution

    def look(self, file: bytes) -> int:
        """Return what the program is to the thread; GONE also where it has been told that there is none."""
        if not self._hold():
            return GONE
        try:
            # Read only now: most programs run inside unasked, and need no look at their folder.
            if self.execution is not None:
                self.execution.workdir = self.workdir
            opened = self._opened(file)
        except OSError as error:
            # A magic link of /proc is not followed.  There may be a file behind it, so it can run inside.
            return INSIDE if error.errno in MAGIC_LINK else self._is_nothing(error.errno or errno.EAGAIN)
        # What was opened is compared, and not a path a second time: it may be replaced at any moment.
        try:
            here = os.fstat(opened)
            if not is_program(here.st_mode):
                return self._is_nothing(errno.EACCES)
            there = self._there = found_at(here, file)
            return INSIDE if there is None else OUTSIDE
        finally:
            os.close(opened)

    def _is_nothing(self, number: int) -> int:
        # As the kernel would; but by the time it looks, something may be there, and run unasked.
        self.fail(number)
        return GONE

    def version(self, file: bytes) -> tuple[int, ...]:
        """Return which version of the program was looked at."""
        return super().version(file) if self._there is None else version_in(self._there)

    def run(self) -> None:
        """Let the kernel do the call."""
        if self._stand_in is not None:
            self._stand_in.ask_again()  # it is out of its call already, so it makes another
        else:
            self._listener.carry_on(self._id)
        self._close()

    def fail(self, number: int) -> None:
        """Answer the call with an errno."""
        if self._stand_in is not None:
            self._stand_in.answer(number)
        else:
            self._listener.fail(self._id, number)
        self._close()

    def deny(self, text: str) -> None:
        """Write the text to the process's stderr, and make it exit with 1."""
        # In this order: the process must not end before its own message is there.
        self._complain(os.fsencode(text) + b"\n", lambda: self.exit(1))

    def exit(self, code: int) -> None:
        """Make the process exit; one that cannot be made to is killed."""
        if self.is_interrupted:
            self._owed = code  # else, when it asks again, the program would run a second time
            self._memory.close()
        elif self._listener.is_waiting(self._id) and not self._leave.end(
            self._listener, self._id, self.tid, code
        ):
            self._complain(_KILLED_TEXT, self._kill)
        else:
            self._close()

    def collect(self, then: Callable[[Means | None], None]) -> None:
        """Copy what the program would inherit; raises OSError with the errno to answer the call with."""
        means = self._means()
        # Checked after the copying: only then all of it is known to be this thread's.
        if self._listener.is_waiting(self._id) or self.is_interrupted:
            then(means)
        elif means is not None:
            means.close()

    def halt(self, start: Start) -> None:
        """See to it that the thread is in its call until it is told otherwise.

        Where signals could end its wait, it is traced first.
        """
        self._start = start
        if not self._listener.holds:
            self._seize(start)
        if self._stand_in is None:
            start.ready()

    def starting(self) -> None:
        """Trace the thread, if it is not: a signal without a handler would kill it, wait or not."""
        if self._stand_in is None and self._listener.holds and self._start is not None:
            self._seize(self._start)

    def replaced(self, program: int) -> None:
        """Let the thread become the stand-in of a program."""
        self._memory.close()  # it has been read
        if self._stand_in is not None:
            self._stand_in.go(program)

    def program_stopped(self, is_stopped: bool) -> None:
        """Stop or continue the stand-in."""
        if self._stand_in is not None:
            self._stand_in.program_stopped(is_stopped)

    def finish(self, status: int) -> None:
        """End as the program has ended."""
        if self._stand_in is None:
            super().finish(status)
        else:
            self._stand_in.finish(status)
            self._close()

    def gone(self) -> int:
        """Return the signal that killed the process."""
        signum = death_signal(self.alive_fd, self.tid)
        self._close()
        return signum

    def forget(self) -> None:
        """Close everything, without an answer: another object has the call now, or it has ended."""
        self._close()

    @property
    def _id(self) -> int:
        return self._notification.id

    def _hold(self) -> bool:
        """Open a pidfd, for a wait that may take long; False if the thread is gone."""
        try:
            self.alive_fd = open_process(self.tid)
        except OSError as error:
            self.fail(error.errno or errno.EAGAIN)
            return False
        # The thread waited before and waits now, so the pidfd is of this one and not of one with its number.
        if self._listener.is_waiting(self._id):
            return True
        self._close()
        return False

    def _read(self, always_runs: Callable[[bytes], bool] | None) -> Execution | None:
        folder, flags = _AT_FDCWD, 0
        arguments = self._notification.arguments
        path_at, argv_at, self._env_at, *_ = arguments
        if self._notification.at_folder:
            folder, path_at, argv_at, self._env_at, flags, _ = arguments
            # The kernel takes the low 32 bits, as a signed number.
            folder = (folder & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        if flags & ~(_AT_EMPTY_PATH | _AT_SYMLINK_NOFOLLOW):
            return None  # flags that only the kernel knows how to answer
        path = self._memory.path(path_at)
        self._path_end = path_at + len(path)
        self._itself = not path and bool(flags & _AT_EMPTY_PATH)
        if not path and not self._itself:
            return None  # ENOENT, as the kernel will say
        file = self._absolute(path, folder)
        if always_runs is not None and always_runs(file):
            self.always_runs = file if file == path else b""
            return None
        # Since Linux 5.18 the kernel itself puts an empty string in place of no arguments.
        argv = self._memory.strings(argv_at) or (b"",)
        return Execution(file, argv, self._workdir)

    @property
    def workdir(self) -> bytes:
        """The thread's cwd, as a path outside."""
        if not self._workdir:
            self._workdir = os.readlink(b"/proc/%d/cwd" % self.tid)
        return self._workdir

    def _absolute(self, path: bytes, folder: int) -> bytes:
        """Return the absolute path of a program.  Raises OSError.

        The kernel is not let answer in its place: by the time it looks, the folder may be there.
        """
        self._folder = folder
        if self._itself and folder != _AT_FDCWD:
            # fexecve: the program is the open file itself.
            return os.readlink(b"/proc/%d/fd/%d" % (self.tid, folder))
        if not path.startswith(b"/"):
            try:
                base = (
                    self.workdir
                    if folder == _AT_FDCWD
                    else os.readlink(b"/proc/%d/fd/%d" % (self.tid, folder))
                )
            except FileNotFoundError:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
            path = base + b"/" + path
        # The usual case.  Anything else may lead elsewhere than it reads, and rules see paths.
        if b"/." not in path and b"//" not in path and path[-1] != 47:
            return path
        try:
            return resolved(self._kernel, self.tid, path)
        except OSError as error:
            if error.errno not in MAGIC_LINK:
                raise
            return path  # through a magic link of /proc, which is not followed: what it reads is judged

    def _opened(self, file: bytes) -> int:
        if self._itself and self._folder != _AT_FDCWD:
            return os.open(b"/proc/%d/fd/%d" % (self.tid, self._folder), os.O_PATH | os.O_CLOEXEC)
        return opened_in_root(self._kernel, self.tid, file)

    def _seize(self, start: Start) -> None:
        """Trace the thread, so that it can become a stand-in; where that is refused, it waits in its call."""
        if self._status is not None:
            seized = Seized(self._notification, self._status, self._path_end, self._free_number)
            self._stand_in = self._stand_ins.seize(self._listener, seized, start)
        if self._stand_in is not None:
            start.traced()

    def _means(self) -> Means | None:
        status = self._status = Status(self.tid)
        if status.tracer:
            return None  # its tracer wants to trace the program, which outside it could not
        # A program outside has what the shell has, and so might have more than this one.
        limits = self._lowered_limits(status)
        inherited = Inherited(self._kernel, self.tid, status)
        if limits is None or not inherited.is_inheritable:
            return None
        inherited.limits = limits
        workdir = opened_folder(self.tid, self.workdir)
        if workdir is None:
            return None  # outside, another folder has that path, or none
        try:
            env = self._memory.strings(self._env_at, MANY_POINTERS)
            found = inherited_descriptors(self._kernel, self.alive_fd, self.tid)
            descriptors, self._free_number = found
        except BaseException:  # each kind of failure must give the descriptor back
            os.close(workdir)
            raise
        return Means(env, descriptors, workdir, inherited)

    def _lowered_limits(self, status: Status) -> tuple[tuple[int, int], ...] | None:
        if self._shell is None:
            return None
        standing = Standing(self.tid, status)
        standing.find_namespaces(self.tid, self._shell)
        return standing.lowered_limits(self._shell)

    def _complain(self, text: bytes, then: Callable[[], None]) -> None:
        # A copy of its own descriptor: opened by a path it would be opened with the rights of the supervisor.
        try:
            descriptor = self._kernel.call("pidfd_getfd", self.alive_fd, 2, 0)
        except OSError:
            then()  # it has no stderr
            return
        self._messages.say(descriptor, text, then)

    def _kill(self) -> None:
        # Else the number may be that of another process by now.
        if self._listener.is_waiting(self._id):
            kill_thread(self.tid)
        self._close()

    def _close(self) -> None:
        self.execution = None
        self._start = self._stand_in = None  # both refer to what refers to this object: a reference cycle
        self._memory.close()
        if self.alive_fd >= 0:
            os.close(self.alive_fd)
            self.alive_fd = -1
