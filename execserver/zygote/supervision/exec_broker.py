"""The exec broker: it decides about every exec of a call and follows it to its end.

An exec caller waits.  Then it runs inside, is refused, or is held: the user is asked about it, or its program
runs outside, or both.  It is held until that program has ended or the caller is gone, whichever comes first.
A program whose caller was killed gets the same signal, and SIGKILL after a grace period.  At most
STARTED_AT_ONCE programs run outside at the same time; others wait in order.  While HELD_AT_ONCE callers are
held, or what they want to run takes HELD_BYTES, the exec sources bring no more.
"""

from __future__ import annotations

import errno
import os

from execserver.rules.policy import ASK_TO_ESCALATE, ASK_TO_RUN, DENY, FORBIDDEN_REASON, RUN
from execserver.zygote.reaper import is_continued
from execserver.zygote.supervision.records import ACCEPT, CANCEL, DECLINE
from execserver.zygote.supervision.trap.callers import GONE, INSIDE, NOTHING, OUTSIDE, Start, version_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.rules.policy import Policy
    from execserver.zygote.supervision.asking import Asking
    from execserver.zygote.supervision.environment import OutsideEnvironment
    from execserver.zygote.supervision.event_loop import EventLoop
    from execserver.zygote.supervision.outside import Outside
    from execserver.zygote.supervision.trap.callers import Caller, Execution, Means

HELD_AT_ONCE = 256  # further ones wait in the kernel, those that would run inside, too
HELD_BYTES = 64 * 1024 * 1024
STARTED_AT_ONCE = 128
GRACE_S = 2.0  # between the caller's signal and SIGKILL
_SIGTERM = 15
_SIGKILL = 9

_REFUSALS = {
    DECLINE: "Execution denied: User declined execution",
    CANCEL: "Execution denied: User cancelled execution",
}
_NOBODY = "Execution denied: nobody could be asked for permission"


class _Held:
    """A caller that is held: its approval prompt, the program that runs in its place, its size in bytes."""

    __slots__ = ("caller", "execution", "has_waited", "means", "pid", "program", "question", "size")

    def __init__(self, caller: Caller, execution: Execution) -> None:
        self.caller = caller
        self.execution = execution
        self.question = 0
        self.pid = 0
        self.means: Means | None = None  # until the start
        # Taken before anybody is asked, and compared before the start: somebody agrees to what is there now.
        self.program = caller.version(execution.file)
        self.has_waited = False  # for an answer or for its turn
        # 64 bytes more for each string, about what Python needs for it: many short ones must count, too.
        self.size = sum(map(len, execution.argv)) + 64 * len(execution.argv)

    def close_means(self) -> None:
        """Close what its program would get, if there is anything."""
        means, self.means = self.means, None
        if means is not None:
            means.close()


class _Starting(Start):
    """The start of one program, once its caller is halted."""

    def __init__(self, broker: ExecBroker, held: _Held) -> None:
        self._broker = broker
        self._held = held

    def ready(self) -> None:
        self._broker.start(self._held)

    def traced(self) -> None:
        self._broker.unwatch(self._held)

    def interrupted(self) -> None:
        self._broker.watch(self._held)

    def lost(self, signum: int) -> None:
        self._broker.gone(self._held, signum)


class ExecBroker:
    """All decisions of one call."""

    def __init__(
        self,
        policy: Policy,
        full_path: bool,
        environment: OutsideEnvironment,
        outside: Outside,
        asking: Asking,
        loop: EventLoop,
    ) -> None:
        self._policy = policy
        self._full_path = full_path
        self._environment = environment
        self._outside = outside
        self._asking = asking
        self._loop = loop
        self._held: set[_Held] = set()
        self._bytes = 0
        self._waiting: list[_Held] = []
        self._starting: set[_Held] = set()
        self._stopped: set[int] = set()  # of the started ones
        self._started: dict[int, _Held | None] = {}  # by pid; None once the caller is gone

    @property
    def is_full(self) -> bool:
        """True while the exec sources should bring no further caller."""
        return len(self._held) >= HELD_AT_ONCE or self._bytes >= HELD_BYTES

    def always_runs(self, file: bytes) -> bool:
        """Return whether a program runs inside whatever its arguments are: its caller need not arrive."""
        return self._policy.always_runs(os.fsdecode(file), self._full_path)

    def arrive(self, caller: Caller, execution: Execution) -> None:
        """Decide about a caller that waits.  If it does not go on at once, watch its `alive_fd`."""
        file = os.fsdecode(execution.file)
        arguments = [os.fsdecode(argument) for argument in execution.argv[1:]]
        action = self._policy.decide(file, arguments, self._full_path).action
        # Inside in any case, so it does not matter what is at the path, and the look is saved.
        if action == RUN:
            caller.run()
            return
        found = caller.look(execution.file)
        if found == GONE:
            return
        if found == OUTSIDE and not _is_called_by_name(execution):
            found = INSIDE
        # Only wrappers come here with nothing: who is intercepted has been told so.
        if found == NOTHING:
            caller.run()
        elif action == DENY:
            caller.deny(f"Execution denied: {FORBIDDEN_REASON}")
        elif action == ASK_TO_RUN or (action == ASK_TO_ESCALATE and found == INSIDE):
            self._ask(self._hold(caller, execution), escalate=False)
        elif action == ASK_TO_ESCALATE:
            self._ask(self._hold(caller, execution), escalate=True)
        elif found == INSIDE:
            caller.run()  # the rules allow it outside, but there it would be another file
        else:
            self._take_turn(self._hold(caller, execution))

    def abandon(self, caller: Caller) -> None:
        """Withdraw what was decided for a caller that wants something else by now."""
        for held in self._held:
            if held.caller is caller:
                self.gone(held)
                return

    def ended(self, pid: int, status: int) -> bool:
        """Take the end of a child; return whether it was a program started here."""
        if pid not in self._started:
            return False
        held = self._started.pop(pid)
        self._stopped.discard(pid)
        if held is not None:
            # First the watch ends, then the caller closes what is watched.
            self._release(held)
            held.caller.finish(status)
        self._start_waiting()
        return True

    def stopped(self, pid: int) -> None:
        """Take the stop of a child."""
        held = self._started.get(pid)
        if held is not None:
            self._stopped.add(pid)
            held.caller.program_stopped(True)

    def look_for_continued(self) -> None:
        """Look which of the stopped programs go on."""
        for pid in list(self._stopped):
            if is_continued(pid):
                self._stopped.discard(pid)
                held = self._started.get(pid)
                if held is not None:
                    held.caller.program_stopped(False)

    def _hold(self, caller: Caller, execution: Execution) -> _Held:
        held = _Held(caller, execution)
        self._held.add(held)
        self._bytes += held.size
        self.watch(held)
        return held

    def watch(self, held: _Held) -> None:
        """Follow a caller by its pidfd."""
        self._loop.add(held.caller.alive_fd, lambda: self.gone(held))

    def unwatch(self, held: _Held) -> None:
        """Follow it so no longer."""
        self._loop.drop(held.caller.alive_fd)

    def _release(self, held: _Held) -> None:
        self._held.discard(held)
        self._bytes -= held.size
        self._starting.discard(held)
        held.close_means()
        self.unwatch(held)

    def gone(self, held: _Held, signum: int | None = None) -> None:
        """The caller is gone: withdraw its approval prompt, or pass on what killed it."""
        self._release(held)
        known = held.caller.gone()
        signum = known if signum is None else signum
        if held.question:
            self._asking.withdraw(held.question)
        if held in self._waiting:
            self._waiting.remove(held)
        self._loop.after(0, self._start_waiting)  # it may have been about to start
        if held.pid in self._started:
            # It stays in `_started` until it is reaped: it counts, and its pid cannot be reused before.
            self._started[held.pid] = None
            # A program inside would have got the signal itself.  Where nobody knows it, a polite one.
            self._signal(held.pid, signum or _SIGTERM)
            self._loop.after(GRACE_S, lambda: self._kill_deserted(held.pid))

    def _signal(self, pid: int, signum: int) -> None:
        """Signal the process group of a program, if it has not been reaped."""
        if pid in self._started:
            try:
                os.killpg(pid, signum)
            except OSError:
                pass  # all members belong to another user by now

    def _kill_deserted(self, pid: int) -> None:
        # By now the number may be that of a program of another caller.
        if pid in self._started and self._started[pid] is None:
            self._signal(pid, _SIGKILL)

    def _ask(self, held: _Held, escalate: bool) -> None:
        # `ask` may call back before it returns, if nobody can be asked.  Then `_answered` has reset the mark,
        # and the number means nothing any more.
        held.question = -1
        number = self._asking.ask(held.execution, lambda action: self._answered(held, action, escalate))
        if held.question:
            held.question = number

    def _answered(self, held: _Held, action: int, escalate: bool) -> None:
        held.question = 0
        held.has_waited = True
        if action == ACCEPT and escalate:
            self._take_turn(held)
            return
        self._release(held)
        if action == ACCEPT:
            held.caller.run()
        else:
            held.caller.deny(_REFUSALS.get(action, _NOBODY))

    def _take_turn(self, held: _Held) -> None:
        self._waiting.append(held)
        self._start_waiting()
        held.has_waited = True

    def _start_waiting(self) -> None:
        while self._waiting and len(self._started) + len(self._starting) < STARTED_AT_ONCE:
            # Only now are its descriptors copied: those who wait take none from this process.
            held = self._waiting.pop(0)
            # Before it gives its means away: a wrapper that has done so can no longer run the program itself.
            if held.has_waited and version_of(held.execution.file) != held.program:
                self._release(held)
                held.caller.run()
                continue
            self._starting.add(held)  # it counts: what a wrapper has to send may take a while
            try:
                held.caller.collect(self._starter(held))
            except OSError as error:
                self._release(held)
                held.caller.fail(error.errno or errno.EIO)

    def _starter(self, held: _Held) -> Callable[[Means | None], None]:
        return lambda means: self._halt(held, means)

    def _halt(self, held: _Held, means: Means | None) -> None:
        held.means = means
        if means is None:
            self._release(held)
            self._loop.after(0, self._start_waiting)
            held.caller.run()
            return
        held.caller.halt(_Starting(self, held))

    def start(self, held: _Held) -> None:
        """Start the program of a caller that cannot go on by itself."""
        execution, means = held.execution, held.means
        assert means is not None
        # A prompt may be open for long: what was put there since is not what somebody has agreed to.
        if version_of(execution.file) != held.program:
            self._release(held)
            self._loop.after(0, self._start_waiting)  # not from here: many in a row would nest
            held.caller.run()
            return
        try:
            means.env = self._environment.of(means.env)
            # From our copy of path and arguments, which was judged and shown.  The caller's memory may say
            # something else by now.
            held.caller.starting()
            held.pid = self._outside.start(execution.file, _argv_outside(execution), means)
        except OSError as error:
            self._release(held)
            self._loop.after(0, self._start_waiting)
            held.caller.fail(error.errno or errno.EIO)
            return
        self._starting.discard(held)
        held.close_means()
        self._started[held.pid] = held
        held.caller.replaced(held.pid)


def _is_called_by_name(execution: Execution) -> bool:
    """Return whether argv[0] names the file that was judged.

    Programs of several names do what argv[0] says: with it a permitted pgrep would become pkill.
    """
    name = execution.argv[0]
    # The patched Bash loses argv[0] of `exec -a`; an empty name is that of no other program.
    return not name or os.path.basename(name) == os.path.basename(execution.file)


def _argv_outside(execution: Execution) -> Sequence[bytes]:
    """Return the argv outside.

    An argv[0] that is empty or has a slash becomes the judged path: a program may look for its files by it.
    """
    if execution.argv[0] and b"/" not in execution.argv[0]:
        return execution.argv
    return [execution.file, *execution.argv[1:]]
