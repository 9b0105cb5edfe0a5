"""One intercepted thread on its way to be a stand-in, and the stand-in until its end.

The thread is traced from the moment its program may run outside:

    HALTING    interrupted, and its call answered, so that it stops on its way back.  The program runs by
               now where only SIGKILL ends the wait of a thread that is traced: nothing else takes it away
    HALTED     it stops, and nothing has run yet; from here on only SIGKILL takes it away from us.  Now the
               program is started outside.  If it cannot be, the thread gets the errno, as from its own exec
    WAITING    the program runs, and nobody waits for the exec: if it ends soon, the thread exits as it did
    ENTERING   its registers make it execute the stand-in, by a call of its own; it runs to that call
    PASSING    the call is intercepted as every other exec, and recognised; now it gets the stand-in's file
    REPLACING  the kernel executes; the file is compared once more before the first instruction
    STANDING   every signal stops it, and goes to the program instead
    STUCK      the stand-in was not executed, as a stop or SIGCONT ended the wait before it was heard, or for
               what others did: it stays stopped in its exec, until the program has ended
    ENDING     the program has ended: it stops once more, and ends as the program did
    OVER       it is traced no more: it ends, has ended, or goes on from its exec

Only registers are written, never memory: that of a vfork child is its parent's.
"""

from __future__ import annotations

import errno
import os
import time

from execserver.zygote.supervision.stand_in import tracing as at
from execserver.zygote.supervision.stand_in.signals import (
    CATCHABLE_STOPS,
    SIGCHLD,
    SIGCONT,
    SIGKILL,
    SIGSTOP,
    STOPS,
    dies_of,
    handling,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.stand_in.file import StandInFile
    from execserver.zygote.supervision.stand_in.tracing import Tracing
    from execserver.zygote.supervision.trap.callers import Start
    from execserver.zygote.supervision.trap.notify import Listener, Notification
    from execserver.zygote.supervision.trap.process_status import Status

HALTING, HALTED, WAITING, ENTERING, PASSING, REPLACING, STANDING, STUCK, ENDING, OVER = range(10)
BRIEF_S = 0.002  # to become a stand-in, and to end as one, takes longer than programs that end within

_AT_EMPTY_PATH = 0x1000
_RESTART = 512  # ERESTARTSYS: a thread without a signal handler to run makes the call again
_EVERY_SIGNAL = (1 << 64) - 1


class Seized:
    """A thread that waits in its exec: its notification, and its process as that was before the program ran.

    `path_end` is the address of the NUL behind its path, `number` that of the stand-in's descriptor there.
    """

    __slots__ = ("notification", "number", "path_end", "status")

    def __init__(self, notification: Notification, status: Status, path_end: int, number: int) -> None:
        self.notification = notification
        self.status = status
        self.path_end = path_end
        self.number = number


class StandIn:
    """A thread that becomes a stand-in; `forget` is called with it when it is traced no more.

    `is_awaited` says that its parent may wait for its exec.  `file` is closed if a process has had it.
    """

    def __init__(
        self,
        loop: EventLoop,
        tracing: Tracing,
        listener: Listener,
        seized: Seized,
        is_awaited: bool,
        file: StandInFile,
        start: Start,
        forget: Callable[[StandIn], None],
    ) -> None:
        self._loop = loop
        self._tracing = tracing
        self._layout = tracing.layout
        self._listener = listener
        self._seized = seized
        self._is_awaited = is_awaited
        self.file = file
        self._start = start
        self._forget = forget
        self.tid = seized.notification.tid
        self.process = seized.status.process
        self._is_given = False  # the file
        self.step = HALTING
        self.since = time.monotonic()
        self._program = 0  # once it runs outside, and until its end is known
        self._has_program = False
        self._status: int | None = None  # its wait status, once it has ended
        self._is_stopped = False  # the process, by a signal
        self._will_stop = False  # a stop came while it became a stand-in
        self._follows_program = False  # stopped, or about to, because the program has stopped by itself
        self._was_told_to_stop = False  # the program, from which nothing was heard since
        self._is_told = False  # it is sent a SIGCONT because the program goes on
        self._registers: list[int] = []

    @property
    def is_on_its_way(self) -> bool:
        """True until it has become a stand-in, or cannot become one."""
        return self.step < STANDING

    @property
    def is_over(self) -> bool:
        """True once it is traced no more."""
        return self.step == OVER

    def halt(self, answer: int = _RESTART) -> None:
        """Stop the thread on its way back from its exec; without a program `start.ready` is called then."""
        self.since = time.monotonic()
        # First the order to stop, then the answer.  In the other order the thread would run in between; and
        # the order alone does not wake it.
        self._tracing.interrupt(self.tid)
        # If a signal has ended the wait before, the thread stops as well, but elsewhere.
        self._listener.fail(self._seized.notification.id, answer)

    def go(self, program: int) -> None:
        """Stand in for a program that has been started outside; HALTING or HALTED only."""
        self._program, self._has_program = program, True
        if self.step == HALTED:
            self._wait()
        elif self._listener.holds:
            self.halt()

    def _wait(self) -> None:
        self.step = WAITING
        # Nothing may be lost, or kill it, until signals are passed on.
        self._tracing.block_signals(self.tid, _EVERY_SIGNAL)
        if self._status is not None:
            self.finish(self._status)
        elif self._is_awaited:
            self.become()
        else:
            self._loop.after(BRIEF_S, self.become)

    def become(self) -> None:
        """Become a stand-in, if the program has not ended before."""
        if self.step != WAITING:
            return
        self.step = ENTERING
        arguments = self._seized.notification.arguments
        argv, env = arguments[2:4] if self._seized.notification.at_folder else arguments[1:3]
        given = self._seized.number, self._seized.path_end, argv, env, _AT_EMPTY_PATH
        registers = self._layout.call(self._registers, self._layout.execveat, *given)
        self._tracing.set_registers(self.tid, registers)
        self._tracing.to_next_call(self.tid)

    def answer(self, number: int) -> None:
        """Let the thread go on from its exec with an errno; HALTING or HALTED only."""
        if self.step == HALTED:
            self._let_go(self._layout.fail(self._registers, number))
        else:
            self._status = 0  # nobody has to hear of it any more
            self.halt(number)

    def ask_again(self) -> None:
        """Have the thread make its call once more, as if for the first time; HALTED only."""
        self._let_go(self._layout.call(self._registers, self._number_of_its_exec()))

    def finish(self, status: int) -> None:
        """Take the wait status of the program: the thread ends as the program has."""
        self._program, self._status = 0, status
        if self.step == WAITING and os.WIFSIGNALED(status):
            self.become()  # nothing else ends by every signal
        elif self.step in (WAITING, STUCK):
            self._end()
        elif self.step == STANDING:
            self.step = ENDING
            self._tracing.interrupt(self.tid)

    def program_stopped(self, is_stopped: bool) -> None:
        """Stop, or continue, as the program has done by itself."""
        # Of what it did because the stand-in did, nothing comes back: that may be outdated by now.
        if is_stopped and not self._was_told_to_stop:
            self._follows_program = self._will_stop = True
            if self.step == STANDING:
                self._send_to_itself(SIGSTOP)
        elif not is_stopped and self._follows_program:
            self._follows_program = self._will_stop = False
            if self.step == STANDING:
                self._is_told = True
                self._send_to_itself(SIGCONT)
        self._was_told_to_stop = False

    def give_up(self) -> None:
        """Kill the process: it has done something else, or nothing, in place of becoming a stand-in."""
        self._send_to_itself(SIGKILL)

    def asked(self, notification: Notification) -> None:
        """Take a notification of this thread."""
        if self.step == HALTING:
            # A signal handler has run, and the call came again before the thread could stop.
            self._listener.fail(notification.id, _RESTART)
        elif self.step == PASSING and self._is_expected(notification) and self._hand_in(notification):
            self.step = REPLACING
            self._listener.carry_on(notification.id)
        else:
            self._listener.fail(notification.id, errno.EPERM)

    def changed(self, status: int) -> None:
        """Take a wait status of the thread: a stop, or its end."""
        if not os.WIFSTOPPED(status):
            self._lost(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
            return
        event, signum = status >> 16, os.WSTOPSIG(status)
        if self.step == ENDING:
            self._end()
        elif self.step == HALTING:
            self._halted(event, signum)
        elif event == at.EVENT_EXEC:
            self._executed()
        elif self.step == STANDING:
            self._stands(event, signum)
        elif signum == at.SYSTEM_CALL:
            self._at_call()
        else:
            # Signals are blocked; but a stop cannot be, and begins anew once the stand-in is there.
            self._will_stop |= signum in STOPS
            self._tracing.to_next_call(self.tid, 0 if signum in STOPS or event else signum)

    def moved(self, tid: int) -> None:
        """Take another number: a thread that executes becomes the first one of its process."""
        self.tid = tid

    def _halted(self, event: int, signum: int) -> None:
        found = self._found_in_its_exec() if event == at.EVENT_STOP else None
        if found is not None:
            self._registers = found
            self._will_stop |= signum in STOPS
            self.step = HALTED
            if self._has_program:
                self._wait()
            else:
                self._start.ready()
        elif self._has_program:
            self.give_up()  # nothing may run in both places
        elif event != at.EVENT_STOP:
            self._tracing.resume(self.tid, signum)  # a signal came before, and has its handler run
        else:
            # A signal has ended the call, and nothing was started.  If the thread asks again, it is known.
            self._leave()
            if self._status is None:
                self._start.interrupted()

    def _found_in_its_exec(self) -> list[int] | None:
        """Return the thread's registers behind its exec; None if it is elsewhere."""
        asked = self._seized.notification
        arguments = asked.arguments[: 4 if asked.at_folder else 3]
        return self._layout.in_call(self._tracing.registers(self.tid), self._number_of_its_exec(), arguments)

    def _number_of_its_exec(self) -> int:
        return self._layout.execveat if self._seized.notification.at_folder else self._layout.execve

    def _at_call(self) -> None:
        """The thread begins or ends a call, the exec of the stand-in if nobody has meddled."""
        if self.step == ENTERING:
            self.step = PASSING
            self._tracing.to_next_call(self.tid)
            return
        # It was not executed.  Until the program has ended the thread stays here, as if in its exec.
        self._registers = self._tracing.registers(self.tid)
        self.step = STUCK
        self.file.close()
        if self._status is not None:
            self._end()

    def _is_expected(self, notification: Notification) -> bool:
        number, path_end, _, _, flags, _ = notification.arguments
        wanted = self._seized.number, self._seized.path_end, _AT_EMPTY_PATH
        return notification.at_folder and (number, path_end, flags) == wanted

    def _hand_in(self, notification: Notification) -> bool:
        """Give the thread the stand-in's file, in place of what its other threads may have put there."""
        # If one of them puts a file there from now on, `_executed` sees it.
        self._is_given = True
        try:
            self._listener.add(notification.id, self.file.descriptor, self._seized.number)
        except OSError:
            return False
        return True

    def _executed(self) -> None:
        """The thread has executed something, and not run any of it yet."""
        if self.step != REPLACING or not self.file.is_at(b"/proc/%d/exe" % self.tid):
            self.give_up()  # which takes it out of this stop
            return
        self.file.close()
        self.step = STANDING
        if self._status is not None:
            self._end()
            return
        self._tracing.block_signals(self.tid, 0)
        self._tracing.resume(self.tid)
        if self._will_stop:
            self._send_to_itself(SIGSTOP)

    def _stands(self, event: int, signum: int) -> None:
        """The stand-in is stopped: by a signal, by its whole process being stopped, or after that."""
        if event == at.EVENT_STOP and signum in STOPS:
            if not self._is_stopped:
                self._is_stopped = True
                if not self._follows_program:
                    self._was_told_to_stop = True
                    send(self._program, SIGSTOP)
            self._tracing.listen(self.tid)
        elif event:
            self._is_stopped = False
            self._tracing.resume(self.tid)
        else:
            self._tracing.resume(self.tid, self._pass_on(signum))

    def _pass_on(self, signum: int) -> int:
        """Give a signal to the program; return what the stand-in itself gets of it: the signal or 0."""
        if signum == SIGSTOP:
            return SIGSTOP  # its whole process stops, which is heard of, and then the program
        if signum == SIGCONT:
            is_told, self._is_told = self._is_told, False
            # A stop of the program that nobody has heard of by now is not heard of any more.
            self._follows_program = self._was_told_to_stop = False
            if is_told:
                return 0
        is_from_kernel = self._tracing.signal_code(self.tid) > 0
        if signum == SIGCHLD and is_from_kernel:
            return 0  # of a child that the process had before
        ignored, caught = handling(self._program)
        bit = 1 << signum - 1
        if signum in CATCHABLE_STOPS and not (caught | ignored) & bit:
            # The kernel decides whether it stops, which depends on who could continue it.
            return signum
        # What the process had ignored, the program would ignore if it ran in there, unless it handles it now.
        if caught & bit or not self._seized.status.ignored & bit:
            send(self._program, signum, is_from_kernel)
        return 0

    def _end(self) -> None:
        """Let the stopped thread end as the program did."""
        status = self._status or 0
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if self.step in (WAITING, STUCK):
            code = 128 + signum if signum else os.WEXITSTATUS(status)
            registers = self._layout.call(self._registers, self._layout.exit_group, code)
        else:
            code = self.file.code.die if signum else self.file.code.leave
            registers = self._tracing.registers(self.tid)
            registers = self._layout.go_to(registers, code, signum or os.WEXITSTATUS(status))
        dies = signum if self.step != STUCK or dies_of(self.tid, signum) else 0
        if self.step != WAITING:  # there, all of them are blocked
            # A handler of its own must not run, now that its program has, and no other signal come first.
            mask = _EVERY_SIGNAL & ~(1 << dies - 1) if dies else _EVERY_SIGNAL
            self._tracing.block_signals(self.tid, mask)
        if dies and self.step == STUCK:
            self._send_to_itself(dies)  # before it can make its call
        # Else it might stay stopped: a stop, or the news of one, may be on its way.
        self._send_to_itself(SIGCONT)
        self._let_go(registers)

    def _let_go(self, registers: list[int]) -> None:
        self._tracing.set_registers(self.tid, registers)
        self._leave()

    def _leave(self) -> None:
        self._tracing.leave(self.tid)
        self._close()

    def _lost(self, signum: int) -> None:
        """The thread has died: its program gets what killed it."""
        is_wanted = self._status is None
        self._close()
        if is_wanted:
            self._start.lost(signum)

    def _close(self) -> None:
        self.step = OVER
        if self._is_given:
            self.file.close()
        self._forget(self)

    def _send_to_itself(self, signum: int) -> None:
        try:
            os.kill(self.tid, signum)
        except OSError:
            pass  # it has ended
