"""The seccomp listener as an exec source: every program that a process inside wants to run comes here."""

from __future__ import annotations

import errno
import os
from collections import deque

from execserver.zygote.supervision.exec_broker import HELD_AT_ONCE
from execserver.zygote.supervision.trap.intercepted import Intercepted
from execserver.zygote.supervision.trap.process_memory import Memory
from execserver.zygote.supervision.trap.process_status import Status
from execserver.zygote.supervision.trap.standing import Standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.exec_broker import ExecBroker
    from execserver.zygote.supervision.refusal_messages import RefusalMessages
    from execserver.zygote.supervision.stand_in.stand_ins import StandIns
    from execserver.zygote.supervision.trap.forced_exit import ForcedExit
    from execserver.zygote.supervision.trap.notify import Listener, Notification


MOST_BACKLOG = 4096  # more can be taken once the broker has room
MOST_UNASKED = 1024  # of the paths that are remembered


class ListenerSource:
    """Takes notifications off a listener, which it owns, and brings them to the exec broker.

    The first `of_ours` may run unasked: the programs that build the sandbox, and the shell.  While the broker
    is full, notifications wait in the kernel.
    """

    def __init__(
        self,
        kernel: Kernel,
        listener: Listener,
        leave: ForcedExit,
        messages: RefusalMessages,
        broker: ExecBroker,
        loop: EventLoop,
        stand_ins: StandIns,
        of_ours: int = 1,
    ) -> None:
        self._kernel = kernel
        self._listener = listener
        self._leave = leave
        self._messages = messages
        self._broker = broker
        self._loop = loop
        self._stand_ins = stand_ins
        self._shell: Standing | None = None  # what it may do
        self._shell_thread = 0  # until its namespaces are known
        # Brought later: they came while only those were wanted that become stand-ins.
        self._backlog: deque[Notification] = deque()
        self._followed: dict[int, Intercepted] = {}  # by thread; who waits for more than the kernel
        self._unasked: set[bytes] = set()  # paths that were found to run inside whatever the arguments are
        self._of_ours = of_ours
        self._is_open = True
        self._is_over = False
        self._is_watched = False
        self.go_on()

    def go_on(self) -> None:
        """Listen if the broker has room, else do not; to be called once per turn."""
        while self._backlog and self._has_room:
            self._bring(self._backlog.popleft())
        # Whoever becomes a stand-in asks once more, and all others wait for it.  What comes before that
        # cannot be left in the kernel.
        is_needed = self._has_room or (self._stand_ins.are_coming and len(self._backlog) < MOST_BACKLOG)
        wanted = self._is_open and not self._is_over and is_needed
        if wanted != self._is_watched:
            if wanted:
                self._loop.add(self._listener.descriptor, self._take)
            else:
                self._loop.drop(self._listener.descriptor)
            self._is_watched = wanted

    @property
    def _has_room(self) -> bool:
        # A refused caller needs a message written to it, so that queue counts as well.
        return not self._broker.is_full and not self._messages.is_full

    def rehearse(self) -> None:
        """Do what comes before the first program, on what is no listener, and close that."""
        self._look_at_shell(os.getpid())
        self._take()

    def close(self) -> None:
        """Listen no more: every later exec of what still lives fails."""
        if self._is_open:
            self._is_open = False
            self._backlog.clear()
            self.go_on()
            self._listener.close()

    def _take(self) -> None:
        try:
            received = self._listener.receive_packed()
        except OSError as error:
            if error.errno != errno.EBADF:
                self.close()  # no process is left that could ask
            return
        if received is None:
            # Until the last process under the filter is reaped, the descriptor would stay ready with nothing
            # to receive, and the event loop would spin.
            self._is_over = self._listener.is_over()
            return
        if self._unasked and self._passes(received):
            return
        notification = self._listener.unpacked(received)
        # Nothing of the command runs yet, so the first ones can only be those.
        if self._of_ours:
            self._of_ours -= 1
            self._look_at_shell(notification.tid)
            self._listener.carry_on(notification.id)
        elif not self._stand_ins.asked(notification):
            self._backlog.append(notification)
            if self._has_room:
                self._bring(self._backlog.popleft())

    def _bring(self, notification: Notification) -> None:
        if self._shell_thread:
            self._look_at_namespaces()
        try:
            memory = Memory(notification.tid)
        except OSError as error:
            # What cannot be read cannot be judged, so it does not run.
            self._listener.fail(notification.id, error.errno or errno.EFAULT)
            return
        self._bring_with(memory, notification)

    def _bring_with(self, memory: Memory, notification: Notification) -> None:
        # One that is followed may have a decision under way, so that must be found.
        is_followed = notification.tid in self._followed
        intercepted = Intercepted(
            *(self._kernel, self._listener, self._leave, self._messages, self._stand_ins, self._shell),
            *(notification, memory),
        )
        execution = intercepted.read(None if is_followed else self._broker.always_runs)
        if execution is None:
            if intercepted.always_runs and len(self._unasked) < MOST_UNASKED:
                self._unasked.add(intercepted.always_runs)
            return
        before = self._followed.pop(intercepted.tid, None)
        if before is not None and before.is_interrupted:
            # Before Linux 5.19 any signal ends the wait.  After a handler that restarts calls, the thread
            # makes the same one again.  The decision under way, perhaps a program outside, serves it.
            if before.ask_again(intercepted):
                self._followed[intercepted.tid] = before
                return
            self._broker.abandon(before)  # the thread wants to run another program by now
            before.forget()
        self._broker.arrive(intercepted, execution)
        if intercepted.alive_fd >= 0:
            self._remember(intercepted)

    def _passes(self, received: bytearray) -> bool:
        """Take the short way, for programs that are known by their paths; return whether it could be taken.

        Most programs of most shells are, so nothing else is made or asked for them.
        """
        identity, tid, path_at = self._listener.path_of(received)
        # Of those there may be a decision under way, and while others wait, all do.
        if tid in self._followed or self._stand_ins.has(tid) or self._backlog or not self._has_room:
            return False
        try:
            memory = Memory(tid)
        except OSError:
            return False  # the long way meets the same error, and says so
        if memory.short_path(path_at) in self._unasked:
            # Closed first: the thread mostly runs next, on this processor, once this one has nothing to do.
            memory.close()
            self._listener.carry_on(identity)
        else:
            self._bring_with(memory, self._listener.unpacked(received))
        return True

    def _look_at_shell(self, thread: int) -> None:
        """Note what the last of these programs, the shell, may do, and the filters that are ours."""
        try:
            status = Status(thread)
            self._shell = Standing(thread, status)
        except (OSError, ValueError):
            return  # then nothing runs outside
        self._stand_ins.filters, self._shell_thread = status.filters, thread

    def _look_at_namespaces(self) -> None:
        # Later than the rest: until it executes, it shares the memory of what builds the sandbox, and so the
        # kernel shows them to root only.
        shell, thread, self._shell_thread = self._shell, self._shell_thread, 0
        try:
            if shell is not None:
                shell.find_namespaces(thread)
        except OSError:
            self._shell = None

    def _remember(self, intercepted: Intercepted) -> None:
        # No event says that a caller is done, so those with nothing open are forgotten now and then.
        if len(self._followed) > 2 * HELD_AT_ONCE:
            for one in self._followed.values():
                one.forget_if_dead()
            self._followed = {tid: one for tid, one in self._followed.items() if one.alive_fd >= 0}
        self._followed[intercepted.tid] = intercepted
