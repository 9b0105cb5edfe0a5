"""The registers of a stopped thread, as PTRACE_GETREGSET returns them, for each CPU.

A thread that is stopped on its way back from an intercepted call stands behind the instruction that made it.
On x86-64 it will be set back when the thread goes on, unless the number of the call is taken from its
registers.  An aarch64 kernel has done that already, and forgotten that there was a call; a signal handler
without SA_RESTART that runs then makes the call fail with EINTR after all.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_RESTARTED = (1 << 64) - 512  # ERESTARTSYS, as a result
_NO_CALL = (1 << 64) - 1  # in the place of a call's number: the kernel restarts nothing


class Registers:
    """Which register is what on one CPU; lists of registers are in the kernel's order.

    `passed` is where the stand-in's code expects what `go_to` passes.  An exec writes its result where other
    calls have their first argument on aarch64, so it is another one there.
    """

    execve: int
    execveat: int
    exit_group: int
    arguments: tuple[int, int, int, int, int]
    number: int
    result: int
    pointer: int
    passed: int
    instruction_bytes: int  # of the one that makes a call
    count: int

    def __init__(self) -> None:
        self.packed = struct.Struct(f"={self.count}Q")

    def in_call(self, registers: Sequence[int], number: int, arguments: Sequence[int]) -> list[int] | None:
        """Return the registers behind a call that is to be restarted; None if the thread is not in it."""
        raise NotImplementedError

    def call(self, registers: Sequence[int], number: int, *arguments: int) -> list[int]:
        """Return registers, of those behind a call, that make another one."""
        made = self.forget_call(registers)
        made[self.pointer] -= self.instruction_bytes
        made[self.number] = number
        for place, argument in zip(self.arguments, arguments, strict=False):
            made[place] = argument
        return made

    def fail(self, registers: Sequence[int], number: int) -> list[int]:
        """Return registers, of those behind a call, with an errno as its result."""
        made = self.forget_call(registers)
        made[self.result] = (1 << 64) - number
        return made

    def go_to(self, registers: Sequence[int], address: int, passed: int) -> list[int]:
        """Return registers of a stand-in that goes on at an address of its code."""
        made = self.forget_call(registers)
        made[self.pointer], made[self.passed] = address, passed
        return made

    def forget_call(self, registers: Sequence[int]) -> list[int]:
        """Return a copy with which the kernel restarts nothing."""
        return list(registers)

    def _are(self, registers: Sequence[int], arguments: Sequence[int]) -> bool:
        places = self.arguments[: len(arguments)]
        return [registers[place] for place in places] == list(arguments)


class X86(Registers):
    """x86-64."""

    execve, execveat, exit_group = 59, 322, 231
    arguments = (14, 13, 12, 7, 9)  # rdi, rsi, rdx, r10, r8
    number = result = 10  # rax
    asked = 15  # the number of the call that the thread is in
    pointer = 16
    passed = 14
    instruction_bytes = 2
    count = 27

    def in_call(self, registers: Sequence[int], number: int, arguments: Sequence[int]) -> list[int] | None:
        """Return the registers behind a call that is to be restarted; None if the thread is not in it."""
        is_asked = registers[self.result] == _RESTARTED and registers[self.asked] == number
        return list(registers) if is_asked and self._are(registers, arguments) else None

    def forget_call(self, registers: Sequence[int]) -> list[int]:
        """Return a copy with which the kernel restarts nothing."""
        made = list(registers)
        made[self.asked] = _NO_CALL
        return made


class Arm(Registers):
    """aarch64."""

    execve, execveat, exit_group = 221, 281, 94
    arguments = (0, 1, 2, 3, 4)
    number = 8
    result = 0
    pointer = 32
    passed = 1
    instruction_bytes = 4
    count = 34

    def in_call(self, registers: Sequence[int], number: int, arguments: Sequence[int]) -> list[int] | None:
        """Return the registers behind a call that is to be restarted; None if the thread is not in it."""
        if registers[self.number] != number or not self._are(registers, arguments):
            return None
        made = list(registers)
        made[self.pointer] += self.instruction_bytes
        return made


REGISTERS: dict[str, Registers] = {"x86_64": X86(), "aarch64": Arm()}
