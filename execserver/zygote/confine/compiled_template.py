"""The compiled filter template (launcher/init): this process's side of it, and the way back to Python.

A small program in C forks sandbox inits in a quarter of the time that an interpreter needs.  It plays what
Python has recorded, and is asked for nothing else.  What it cannot do, or finds otherwise than recorded, is
started by Python on the same descriptors, so every refusal and its reason are Python's.
"""

from __future__ import annotations

import errno
import functools
import os
import struct

from execserver.protocol.errors import strerror
from execserver.sandbox.kernel.namespaces import flags_for
from execserver.sandbox.rootfs.compiled import MOST_BYTES, CompiledRoot, compiled
from execserver.zygote.channel import send_record
from execserver.zygote.confine import filter_template, spare_init
from execserver.zygote.confine.child import start_child
from execserver.zygote.confine.filter_template import NAME, SOCKET, NotForked, Template
from execserver.zygote.confine.plan_cache import PlanCache
from execserver.zygote.lookup import env_value, pipe_candidates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan
    from execserver.sandbox.rootfs.recorded import RecordedRoot
    from execserver.zygote.confine.child import Report
    from execserver.zygote.confine.command import Command
    from execserver.zygote.confine.filter_template import Message

    # Starts the command by Python, on the same or other descriptors.
    ByPython = Callable[[Sequence[int]], tuple[int, Report]]
    _Begun = Callable[[int, int], bytes]

_NO_USER_NAMESPACE = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.ENOSYS)
_PLANS = 16  # that a template keeps
_SLAVE_BYTES = 64
_ERRORS = 134
_HELLO, _START = 1, 3
_HELLO_HEAD = struct.Struct("<IIIIII")  # kind, size, idle, fresh and quiet milliseconds, texts
# Kind and size; number of the plan, clone flags; CPU, bytes of a file, open files; slot, stdin, counts.
_START_HEAD = struct.Struct("<II2Q3q6I")
_IDENTITY = struct.Struct("<3Q")


class CompiledRoots:
    """The compiled sandbox roots of recent plans; like the plans in the cache, by their bytes."""

    def __init__(self, plans: PlanCache) -> None:
        self._plans = plans
        self._known: dict[bytes, tuple[RecordedRoot, CompiledRoot | None]] = {}

    def root(self, record: bytes) -> CompiledRoot | None:
        """Return the root of an encoded plan, another one after each change of it; None where there is none.

        Raises SpawnFailure.
        """
        recorded = self._plans.recorded(record)
        known = self._known.pop(record, None)
        if recorded is None:
            return None
        if known is None or known[0] is not recorded:
            known = recorded, compiled(recorded)
        self._known[record] = known
        if len(self._known) > _PLANS:
            del self._known[next(iter(self._known))]
        return known[1]


class CompiledTemplate(Template):
    """One template, of the program at a path; without it, or if it cannot be executed, `start` is False."""

    def __init__(self, kernel: Kernel, program: bytes, syscall_filter: str) -> None:
        super().__init__(kernel, syscall_filter)
        self._program = program
        self._numbers: dict[CompiledRoot, tuple[int, int]] = {}  # slot and number; the oldest first
        self._last = 0

    def begin(
        self,
        root: CompiledRoot,
        plan: SandboxPlan,
        command: Command,
        covers: Sequence[Mount],
        deadline_ns: int,
        by_python: ByPython,
        kept: Sequence[int] = (),
    ) -> tuple[int, Report]:
        """Start a command; return as `start_child`.  Raises OSError as `Template.ask`, or as `by_python`.

        `kept` is what goes along behind stdio.
        """
        ends = [] if command.slave else [end for end in command.stdio if end is not None]
        ends += kept
        held: list[int] = []
        try:
            begun = _start(root, plan, command, covers)
            # Kept until it is known whether Python has to make the start.  A terminal that nobody has open
            # would end meanwhile.
            _hold(held, command.slave, ends)
            pid, report = start_child(
                lambda report: self.ask(lambda: self._messages(root, begun, [report, *held]), deadline_ns)
            )
        except _Unfit:
            _close(held)
            return by_python(ends)
        except NotForked as refused:
            if refused.errno in _NO_USER_NAMESPACE and os.geteuid() == 0:
                self._give_up()
            return _again(by_python, held, bool(command.slave))
        except OSError:
            _close(held)
            raise
        report.hold(held, lambda: _again(by_python, held, bool(command.slave)))
        return pid, report

    def _give_up(self) -> None:
        """End the process, and have none again: root without user namespaces is served by Python alone."""
        self._program = b""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _start(self) -> bool:
        self._numbers.clear()
        if not self._program or not super()._start():
            self._program = b""
            return False
        if self._socket is not None:
            send_record(self._socket, hello())
        return True

    def _become(self) -> None:
        os.set_inheritable(SOCKET, True)
        os.execve(self._program, [NAME], {})

    def _messages(self, root: CompiledRoot, begun: _Begun, descriptors: Sequence[int]) -> list[Message]:
        """Return what to send: the start, and before it its plan if the process does not know that."""
        slot, number, plans = self._plan(root)
        return [*plans, (begun(slot, number), descriptors)]

    def _plan(self, root: CompiledRoot) -> tuple[int, int, list[Message]]:
        """Return slot and number of a plan, and what to send before they are used."""
        known = self._numbers.pop(root, None)
        slot, number = self._numbers[root] = known or (self._free_slot(), self._last + 1)
        if known:
            return slot, number, []
        self._last = number
        return slot, number, [(root.message(slot, number), ())]

    def _free_slot(self) -> int:
        """Return a slot without a plan, or that of the plan used longest ago, which is forgotten."""
        if len(self._numbers) < _PLANS:
            return len(self._numbers)
        return self._numbers.pop(next(iter(self._numbers)))[0]


class _Unfit(Exception):
    """A start that no message holds."""


def _start(root: CompiledRoot, plan: SandboxPlan, command: Command, covers: Sequence[Mount]) -> _Begun:
    """Return what makes the message of a start for the slot and the number of its plan.  Raises _Unfit."""
    identities = [cover.identity for cover in covers if cover.identity is not None]
    if len(identities) != len(covers) or len(identities) not in (0, root.covers):
        raise _Unfit
    argv = command.argv if command.arg0 is None else [command.arg0, *command.argv[1:]]
    try:
        candidates = pipe_candidates(command.argv[0], env_value(command.env, b"PATH"))
    except OSError:
        raise _Unfit from None
    strings = (command.cwd, command.slave, command.argv[0], *candidates, *argv, *command.env)
    tail = b"".join([_IDENTITY.pack(*identity) for identity in identities])
    tail += b"\0".join(strings) + b"\0"  # no string of a request holds a NUL
    size = _START_HEAD.size + len(tail)
    if size > MOST_BYTES or len(command.slave) >= _SLAVE_BYTES:
        raise _Unfit
    has_stdin = not command.slave and command.stdio[0] is not None
    flags, limits = flags_for(plan), tuple(command.limits)[:3]
    counts = has_stdin, len(identities), len(candidates), len(argv), len(command.env)
    return lambda slot, number: _START_HEAD.pack(_START, size, number, flags, *limits, slot, *counts) + tail


def _again(by_python: ByPython, held: Sequence[int], on_terminal: bool) -> tuple[int, Report]:
    """Have Python make a start on descriptors, which its report holds from now on; or they are closed."""
    try:
        pid, report = by_python(() if on_terminal else held)
    except BaseException:
        _close(held)
        raise
    report.hold(held)
    return pid, report


def _hold(held: list[int], slave: bytes, ends: Sequence[int]) -> None:
    """Add a terminal, or copies of stdio, to what is held.  Raises _Unfit where there is none, or no room."""
    try:
        if slave:
            # The init makes it the controlling one of its session, once nothing can go wrong any more.
            held.append(os.open(slave, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        else:
            held += map(os.dup, ends)
    except OSError:
        raise _Unfit from None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def hello() -> bytes:
    """Return the message that a template gets first."""
    return _hello(filter_template.IDLE_MS, int(spare_init.FRESH_S * 1000), filter_template.QUIET_MS)


@functools.lru_cache(1)
def _hello(*times_ms: int) -> bytes:
    texts = b"".join(strerror(number).encode() + b"\0" for number in range(_ERRORS))
    return _HELLO_HEAD.pack(_HELLO, _HELLO_HEAD.size + len(texts), *times_ms, _ERRORS) + texts
