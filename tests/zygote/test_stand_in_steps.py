"""The steps from a program that runs outside to a stand-in, with a tracer and a listener that only note."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.stand_in import tracing as at
from execserver.zygote.supervision.stand_in.stand_in import Seized, StandIn
from execserver.zygote.supervision.trap.callers import Start
from execserver.zygote.supervision.trap.notify import Notification

TID, NUMBER, PATH_END = 2_000_000_000, 7, 4242  # no process has that number
ARGUMENTS = (4200, 5000, 6000, 0, 0, 0)
EXECVE, EXECVEAT, EXIT_GROUP = 59, 322, 231
RESTARTED = (1 << 64) - 512


class Noting:
    """Notes each call as its name and arguments; takes the place of a tracer, a listener and a file."""

    descriptor = 3

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))

    def registers(self, tid: int) -> list[int]:
        """Return those of a thread in its exec."""
        found = [0] * 27
        found[at.RAX], found[at.CALL], found[at.RIP] = RESTARTED, EXECVE, 1002
        found[at.RDI], found[at.RSI], found[at.RDX] = ARGUMENTS[:3]
        return found

    def is_at(self, place: object) -> bool:
        """Say that it is there."""
        return True

    def names(self) -> list[str]:
        """Return the names of the calls since the last look."""
        names = [call[0] for call in self.calls]
        self.calls.clear()
        return names


class Began(Start):
    """Is told when the program may be started."""

    one: StandIn
    signum = 0

    def ready(self) -> None:
        self.one.go(1)

    def lost(self, signum: int) -> None:
        self.signum = signum


class Status:
    """What counts of the process."""

    process, ignored = TID, 0


class Scene:
    """One thread, stopped in its exec, and its program started."""

    def __init__(self, is_awaited: bool) -> None:
        self.loop, self.tracing, self.listener, self.file = EventLoop(), Noting(), Noting(), Noting()
        self.forgotten: list[StandIn] = []
        self.start, ends = Began(), (self.tracing, self.listener)
        seized: Any = Seized(Notification(1, TID, False, ARGUMENTS), Status(), PATH_END, NUMBER)  # type: ignore[arg-type]
        given: Any = (*ends, seized, is_awaited, self.file, self.start, self.forgotten.append)
        self.one = self.start.one = StandIn(self.loop, *given)
        self.one.changed(at.EVENT_STOP << 16 | signal.SIGTRAP << 8 | 0x7F)

    def set_registers(self) -> list[int]:
        """Return what the thread's registers were set to last."""
        return next(call[2] for call in reversed(self.tracing.calls) if call[0] == "set_registers")

    def ask(self, number: int = NUMBER) -> None:
        """Let the thread ask for the stand-in, as it was told, or for another descriptor."""
        self.one.changed(at.SYSTEM_CALL << 8 | 0x7F)
        self.one.asked(Notification(2, TID, True, (number, PATH_END, 0, 0, 0x1000, 0)))


def test_a_program_that_ends_at_once_needs_no_stand_in() -> None:
    scene = Scene(is_awaited=False)
    assert "set_registers" not in scene.tracing.names()
    scene.one.finish(3 << 8)
    registers = scene.set_registers()
    assert (registers[at.RAX], registers[at.RDI], registers[at.RIP]) == (EXIT_GROUP, 3, 1000)
    assert scene.tracing.names() == ["block_signals", "set_registers", "leave"]
    assert scene.forgotten == [scene.one]
    assert scene.file.calls == []  # no process has had it: it serves the next one


def test_one_that_runs_on_has_a_stand_in_soon() -> None:
    scene = Scene(is_awaited=False)
    scene.tracing.names()
    scene.loop.turn()  # until the timer
    assert scene.set_registers()[at.RAX] == EXECVEAT


@pytest.mark.parametrize("status", [signal.SIGTERM, signal.SIGKILL])
def test_so_has_one_that_a_signal_has_ended(status: int) -> None:
    scene = Scene(is_awaited=False)
    scene.one.finish(status)
    registers = scene.set_registers()
    assert (registers[at.RAX], registers[at.RDI], registers[at.RSI]) == (EXECVEAT, NUMBER, PATH_END)


def test_whose_parent_waits_for_the_exec_becomes_a_stand_in_at_once() -> None:
    scene = Scene(is_awaited=True)
    assert scene.set_registers()[at.RAX] == EXECVEAT
    scene.ask()
    assert scene.listener.calls[-2:] == [("add", 2, scene.file.descriptor, NUMBER), ("carry_on", 2)]
    scene.one.changed(at.EVENT_EXEC << 16 | signal.SIGTRAP << 8 | 0x7F)
    assert ("close",) in scene.file.calls
    scene.loop.after(0, lambda: None)
    scene.loop.turn()
    assert scene.tracing.names().count("to_next_call") == 2  # nothing begins a second time


def test_a_thread_that_asks_for_another_file_gets_none() -> None:
    scene = Scene(is_awaited=True)
    scene.ask(number=NUMBER + 1)
    assert scene.listener.names() == ["fail"]


def test_the_timer_of_one_that_is_gone_does_nothing() -> None:
    scene = Scene(is_awaited=False)
    scene.one.changed(signal.SIGKILL)
    assert scene.forgotten == [scene.one]
    assert scene.start.signum == signal.SIGKILL
    scene.tracing.names()
    scene.loop.turn()
    assert scene.tracing.names() == []
