"""Where every exec of a call is decided and followed to its end.

A caller waits -> it runs inside, is refused, or is followed: asked about, then perhaps started outside.  Who
is followed is held here until the program outside has ended or the caller is gone, whichever comes first; a
program whose caller was killed gets the same signal, and SIGKILL after a grace.  At most STARTED_AT_ONCE
programs run outside at the same time, others wait in their order.  While HELD_AT_ONCE callers are held, or
what they want to run takes HELD_BYTES, the sources bring no more.
"""

from __future__ import annotations

import errno
import os

from execserver.rules.policy import ASK_TO_ESCALATE, ASK_TO_RUN, DENY, FORBIDDEN_REASON, RUN
from execserver.zygote.supervision.callers import GONE, INSIDE, NOTHING, OUTSIDE
from execserver.zygote.supervision.records import ACCEPT, CANCEL, DECLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.rules.policy import Policy
    from execserver.zygote.supervision.asking import Asking
    from execserver.zygote.supervision.callers import Caller, Execution, Means
    from execserver.zygote.supervision.environment import OutsideEnvironment
    from execserver.zygote.supervision.outside import Outside
    from execserver.zygote.supervision.watch import Watch

HELD_AT_ONCE = 256
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
    """A caller that is followed: its open question, the program that runs in its place, its size."""

    __slots__ = ("caller", "execution", "pid", "program", "question", "size")

    def __init__(self, caller: Caller, execution: Execution) -> None:
        self.caller = caller
        self.execution = execution
        self.question = 0
        self.pid = 0
        self.program = _version_of(execution.file)
        self.size = sum(map(len, execution.argv)) + 64 * len(execution.argv)


class Desk:
    """All decisions of one call."""

    def __init__(
        self,
        policy: Policy,
        full_path: bool,
        environment: OutsideEnvironment,
        outside: Outside,
        asking: Asking,
        watch: Watch,
    ) -> None:
        self._policy = policy
        self._full_path = full_path
        self._environment = environment
        self._outside = outside
        self._asking = asking
        self._watch = watch
        self._held: set[_Held] = set()
        self._bytes = 0
        self._waiting: list[_Held] = []
        self._started: dict[int, _Held | None] = {}  # by pid; None once the caller is gone

    @property
    def is_full(self) -> bool:
        """True while no further caller should be brought."""
        return len(self._held) >= HELD_AT_ONCE or self._bytes >= HELD_BYTES

    def arrive(self, caller: Caller, execution: Execution) -> None:
        """Decide about a caller that waits.  One that does not go on at once has its `alive_fd` watched."""
        file = os.fsdecode(execution.file)
        arguments = [os.fsdecode(argument) for argument in execution.argv[1:]]
        action = self._policy.decide(file, arguments, self._full_path).action
        if action == RUN:
            caller.run()
            return
        found = caller.look(execution.file)
        if found == GONE:
            return
        if found == OUTSIDE and not _is_called_by_name(execution):
            found = INSIDE
        if found == NOTHING:
            caller.run()
        elif action == DENY:
            caller.deny(f"Execution denied: {FORBIDDEN_REASON}")
        elif action == ASK_TO_RUN or (action == ASK_TO_ESCALATE and found == INSIDE):
            self._ask(self._hold(caller, execution), escalate=False)
        elif action == ASK_TO_ESCALATE:
            self._ask(self._hold(caller, execution), escalate=True)
        elif found == INSIDE:
            caller.run()
        else:
            self._take_turn(self._hold(caller, execution))

    def abandon(self, caller: Caller) -> None:
        """Give up what was decided for a caller that wants something else by now."""
        for held in self._held:
            if held.caller is caller:
                self._gone(held)
                return

    def ended(self, pid: int, status: int) -> bool:
        """Take the end of a child; return whether it was a program started here."""
        if pid not in self._started:
            return False
        held = self._started.pop(pid)
        if held is not None:
            self._release(held)
            held.caller.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        self._start_waiting()
        return True

    def _hold(self, caller: Caller, execution: Execution) -> _Held:
        held = _Held(caller, execution)
        self._held.add(held)
        self._bytes += held.size
        self._watch.add(caller.alive_fd, lambda: self._gone(held))
        return held

    def _release(self, held: _Held) -> None:
        self._held.discard(held)
        self._bytes -= held.size
        self._watch.drop(held.caller.alive_fd)

    def _gone(self, held: _Held) -> None:
        """The caller is gone: withdraw its question, or pass on what killed it."""
        self._release(held)
        signum = held.caller.gone()
        if held.question:
            self._asking.withdraw(held.question)
        if held in self._waiting:
            self._waiting.remove(held)
        if held.pid in self._started:
            self._started[held.pid] = None
            self._signal(held.pid, signum or _SIGTERM)
            self._watch.after(GRACE_S, lambda: self._kill_deserted(held.pid))

    def _signal(self, pid: int, signum: int) -> None:
        """Signal the group of a program that has not been reaped."""
        if pid in self._started:
            try:
                os.killpg(pid, signum)
            except OSError:
                pass

    def _kill_deserted(self, pid: int) -> None:
        # By now the number may be that of another program.
        if pid in self._started and self._started[pid] is None:
            self._signal(pid, _SIGKILL)

    def _ask(self, held: _Held, escalate: bool) -> None:
        held.question = -1
        number = self._asking.ask(held.execution, lambda action: self._answered(held, action, escalate))
        if held.question:
            held.question = number

    def _answered(self, held: _Held, action: int, escalate: bool) -> None:
        held.question = 0
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

    def _start_waiting(self) -> None:
        while self._waiting and len(self._started) < STARTED_AT_ONCE:
            held = self._waiting.pop(0)
            try:
                held.caller.collect(self._starter(held))
            except OSError as error:
                self._release(held)
                held.caller.fail(error.errno or errno.EIO)

    def _starter(self, held: _Held) -> Callable[[Means | None], None]:
        return lambda means: self._start(held, means)

    def _start(self, held: _Held, means: Means | None) -> None:
        execution = held.execution
        # A question may be open for long: what was put there since is not what somebody has agreed to.
        if means is None or _version_of(execution.file) != held.program:
            self._release(held)
            if means is not None:
                means.close()
            held.caller.run()
            return
        try:
            means.env = self._environment.of(means.env)
            held.pid = self._outside.start(execution.file, _argv_outside(execution), means)
        except OSError as error:
            self._release(held)
            held.caller.fail(error.errno or errno.EIO)
            return
        finally:
            means.close()
        self._started[held.pid] = held


def _version_of(file: bytes) -> tuple[int, ...]:
    """Return what tells a file from another one, and from itself before it was written to."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_called_by_name(execution: Execution) -> bool:
    """Tell whether argv[0] names the file that was judged, not what else a program of many names can do."""
    name = execution.argv[0]
    # The patched Bash forgets a name now and then; an empty one is no other program's.
    return not name or os.path.basename(name) == os.path.basename(execution.file)


def _argv_outside(execution: Execution) -> Sequence[bytes]:
    """Return the argv outside, where a program that looks for its files by argv[0] must find its own."""
    if execution.argv[0] and b"/" not in execution.argv[0]:
        return execution.argv
    return [execution.file, *execution.argv[1:]]
