"""The steps from a program that runs outside to a stand-in, with a tracer and a listener that only note."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.stand_in import tracing as at
from execserver.zygote.supervision.stand_in.registers import REGISTERS, X86, Registers
from execserver.zygote.supervision.stand_in.stand_in import Seized, StandIn
from execserver.zygote.supervision.trap.callers import Start
from execserver.zygote.supervision.trap.notify import Notification

TID, NUMBER, PATH_END = 2_000_000_000, 7, 4242  # no process has that number
ARGUMENTS = (4200, 5000, 6000, 0, 0, 0)


@pytest.fixture(params=sorted(REGISTERS))
def layout(request: pytest.FixtureRequest) -> Registers:
    """The registers of one CPU."""
    return REGISTERS[request.param]


def in_its_exec(layout: Registers) -> list[int]:
    """Return the registers as the kernel shows them of a thread stopped on its way back from an execve."""
    found = [0] * layout.count
    found[layout.pointer] = 1000
    found[layout.number] = layout.execve
    for place, argument in zip(layout.arguments, ARGUMENTS[:3], strict=False):
        found[place] = argument
    if isinstance(layout, X86):
        found[layout.pointer] += layout.instruction_bytes
        found[layout.result], found[layout.asked] = (1 << 64) - 512, layout.execve
    return found


class Noting:
    """Notes each call as its name and arguments; takes the place of a tracer, a listener and a file."""

    descriptor = 3

    def __init__(self, layout: Registers) -> None:
        self.layout = layout
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))

    def registers(self, tid: int) -> list[int]:
        """Return those of a thread in its exec, whose instruction is at 1000."""
        return in_its_exec(self.layout)

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
    is_told = False

    def ready(self) -> None:
        self.is_told = True
        self.one.go(1)

    def lost(self, signum: int) -> None:
        self.signum = signum


class Status:
    """What counts of the process."""

    process, ignored = TID, 0


class Scene:
    """One thread, stopped in its exec, and its program started; or not yet stopped, and it runs."""

    def __init__(self, layout: Registers, is_awaited: bool, is_running: bool = False) -> None:
        self.layout = layout
        self.loop, (self.tracing, self.listener, self.file) = EventLoop(), [Noting(layout) for _ in range(3)]
        self.forgotten: list[StandIn] = []
        self.start, ends = Began(), (self.tracing, self.listener)
        seized: Any = Seized(Notification(1, TID, False, ARGUMENTS), Status(), PATH_END, NUMBER)  # type: ignore[arg-type]
        given: Any = (*ends, seized, is_awaited, self.file, self.start, self.forgotten.append)
        self.one = self.start.one = StandIn(self.loop, *given)
        if is_running:
            self.one.go(1)
        else:
            self.stop()

    def stop(self) -> None:
        """Stop the thread, as it was ordered to."""
        self.one.changed(at.EVENT_STOP << 16 | signal.SIGTRAP << 8 | 0x7F)

    def call_made(self) -> tuple[int, ...]:
        """Return the call that the thread's registers, as they were set last, make: number and arguments.

        It is made by the instruction that made its exec.
        """
        found = next(call[2] for call in reversed(self.tracing.calls) if call[0] == "set_registers")
        assert found[self.layout.pointer] == 1000
        return (found[self.layout.number], *(found[place] for place in self.layout.arguments))

    def ask(self, number: int = NUMBER) -> None:
        """Let the thread ask for the stand-in, as it was told, or for another descriptor."""
        self.one.changed(at.SYSTEM_CALL << 8 | 0x7F)
        self.one.asked(Notification(2, TID, True, (number, PATH_END, 0, 0, 0x1000, 0)))


def test_a_program_that_ends_at_once_needs_no_stand_in(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False)
    before = scene.tracing.names()
    assert "set_registers" not in before
    assert before[-1] == "block_signals"  # while the program runs, since nobody waits for it then
    scene.one.finish(3 << 8)
    assert scene.call_made()[:2] == (layout.exit_group, 3)
    assert scene.tracing.names() == ["set_registers", "leave"]
    assert scene.forgotten == [scene.one]
    assert scene.file.calls == []  # no process has had it: it serves the next one


def test_one_that_runs_on_has_a_stand_in_soon(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False)
    scene.tracing.names()
    scene.loop.turn()  # until the timer
    assert scene.call_made()[0] == layout.execveat


def test_a_program_that_runs_before_its_caller_stops_is_not_started_again(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False, is_running=True)
    scene.stop()
    assert not scene.start.is_told
    scene.one.finish(3 << 8)
    assert scene.call_made()[:2] == (layout.exit_group, 3)


def test_one_that_ends_before_its_caller_stops_ends_it_then(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=True, is_running=True)
    scene.one.finish(3 << 8)
    assert "set_registers" not in scene.tracing.names()
    scene.stop()
    assert scene.call_made()[:2] == (layout.exit_group, 3)
    assert scene.tracing.names()[-3:] == ["block_signals", "set_registers", "leave"]
    assert scene.forgotten == [scene.one]


def test_one_that_a_signal_has_ended_before_has_a_stand_in(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False, is_running=True)
    scene.one.finish(signal.SIGTERM)
    scene.stop()
    assert scene.call_made()[:3] == (layout.execveat, NUMBER, PATH_END)


@pytest.mark.parametrize("event", [at.EVENT_STOP, 0])
def test_whose_program_runs_does_not_get_out_of_its_exec(layout: Registers, event: int) -> None:
    scene = Scene(layout, is_awaited=False, is_running=True)
    scene.tracing.registers = lambda tid: [0] * layout.count  # type: ignore[method-assign]
    scene.tracing.names()
    scene.one.changed(event << 16 | signal.SIGUSR1 << 8 | 0x7F)
    assert not {"resume", "leave", "to_next_call"} & set(scene.tracing.names())  # it is killed where it is
    scene.one.changed(signal.SIGKILL)
    assert scene.start.signum == signal.SIGKILL


@pytest.mark.parametrize("status", [signal.SIGTERM, signal.SIGKILL])
def test_so_has_one_that_a_signal_has_ended(status: int, layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False)
    scene.one.finish(status)
    assert scene.call_made()[:3] == (layout.execveat, NUMBER, PATH_END)


def test_whose_parent_waits_for_the_exec_becomes_a_stand_in_at_once(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=True)
    assert scene.call_made()[0] == layout.execveat
    scene.ask()
    assert scene.listener.calls[-2:] == [("add", 2, scene.file.descriptor, NUMBER), ("carry_on", 2)]
    scene.one.changed(at.EVENT_EXEC << 16 | signal.SIGTRAP << 8 | 0x7F)
    assert ("close",) in scene.file.calls
    scene.loop.after(0, lambda: None)
    scene.loop.turn()
    assert scene.tracing.names().count("to_next_call") == 2  # nothing begins a second time


def test_a_thread_that_asks_for_another_file_gets_none(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=True)
    scene.ask(number=NUMBER + 1)
    assert scene.listener.names() == ["fail"]


def test_the_timer_of_one_that_is_gone_does_nothing(layout: Registers) -> None:
    scene = Scene(layout, is_awaited=False)
    scene.one.changed(signal.SIGKILL)
    assert scene.forgotten == [scene.one]
    assert scene.start.signum == signal.SIGKILL
    scene.tracing.names()
    scene.loop.turn()
    assert scene.tracing.names() == []


def test_a_thread_that_is_elsewhere_is_not_in_its_exec(layout: Registers) -> None:
    registers = in_its_exec(layout)
    assert layout.in_call(registers, layout.execve, ARGUMENTS[:3]) is not None
    assert layout.in_call(registers, layout.execveat, ARGUMENTS[:3]) is None
    for place in layout.arguments[:3]:
        meddled = list(registers)
        meddled[place] += 1
        assert layout.in_call(meddled, layout.execve, ARGUMENTS[:3]) is None


def test_an_errno_is_the_result_behind_the_call(layout: Registers) -> None:
    behind = layout.in_call(in_its_exec(layout), layout.execve, ARGUMENTS[:3])
    assert behind is not None
    failed = layout.fail(behind, 13)
    assert failed[layout.pointer] == 1000 + layout.instruction_bytes
    assert failed[layout.result] == (1 << 64) - 13


def test_nothing_is_restarted_once_the_registers_are_set(layout: Registers) -> None:
    """An x86-64 kernel would, by the number that it keeps apart."""
    registers = in_its_exec(layout)
    for made in (layout.fail(registers, 1), layout.call(registers, 1, 2), layout.go_to(registers, 1, 2)):
        assert len(made) == layout.count
        if isinstance(layout, X86):
            assert made[layout.asked] == (1 << 64) - 1


def test_what_a_stand_in_is_told_survives_the_result_of_its_exec() -> None:
    """An aarch64 kernel writes that after the stop at which the registers are set."""
    arm = REGISTERS["aarch64"]
    assert arm.passed != arm.result
    assert arm.go_to([0] * arm.count, 4096, 7)[arm.passed] == 7
