"""Turns a table of rules into the kernel's filter program, and installs it.

A program is a sequence of 8-byte instructions (`struct sock_filter`): code, jump if true, jump if false,
operand.  It loads words of `struct seccomp_data`: the call's number at 0, the architecture at 4, the low word
of argument N at 16 + 8N (both architectures are little-endian).
"""

from __future__ import annotations

import errno
import os
import struct

from execserver.sandbox.kernel.seccomp_numbers import LACKED, NUMBERS
from execserver.sandbox.kernel.seccomp_table import (
    ABSENT,
    ALWAYS,
    ARCHITECTURES,
    COMMON,
    FIRST_NOT,
    NO_CALL,
    OPEN,
    PROXY_ROUTED,
    REQUEST_OUTSIDE,
    RESTRICTED,
    SECOND_NOT,
    SECOND_WITHIN,
    TYPE_IS,
    TYPE_MASK,
    WITHOUT_NAMESPACES,
    X32_BIT,
)
from execserver.sandbox.kernel.syscalls import number_of
from execserver.sandbox.plan import FILTER_NONE, FILTER_OPEN, FILTER_PROXY_ROUTED, FILTER_RESTRICTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.seccomp_table import Rule
    from execserver.sandbox.kernel.syscalls import Kernel

    Instruction = tuple[int, int, int, int]

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA: the operand is the number of instructions to skip
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_GREATER_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

ALLOW = 0x7FFF0000
_ERRNO = 0x00050000  # SECCOMP_RET_ERRNO, with the errno in the low bits
REFUSE = _ERRNO | 1  # EPERM
LACK = _ERRNO | 38  # ENOSYS
MISFIT = _ERRNO | 25  # ENOTTY
KILL = 0x80000000  # the whole process

_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENTS_AT = 16
_FARTHEST = 255  # instructions that a conditional jump can skip: its offsets are bytes
_FEW = 3  # so many calls are compared one by one
_INSTRUCTION = struct.Struct("<HBBI")
INSTRUCTION_BYTES = _INSTRUCTION.size
_PROGRAM = struct.Struct("@HP")
_SET_MODE_FILTER = 1
_PR_GET_SECCOMP = 21
_MODE_FILTER = 2

_TABLES: dict[str, Sequence[Rule]] = {
    FILTER_RESTRICTED: RESTRICTED,
    FILTER_PROXY_ROUTED: PROXY_ROUTED,
    FILTER_OPEN: OPEN,
}


def rules_of(syscall_filter: str, namespaces: bool = True) -> Sequence[Rule]:
    """Return the rules of a plan's filter; none for FILTER_NONE.

    Without namespaces the filter must do some of their work, whatever the plan's own filter is.
    """
    if namespaces:
        return _TABLES.get(syscall_filter, ())
    return (*_TABLES.get(syscall_filter, COMMON), *WITHOUT_NAMESPACES)


def program(rules: Sequence[Rule], machine: str) -> bytes:
    """Return the filter program of the rules.  Raises KeyError for an unknown machine or call.

    The program finds the call by binary search: every system call of every process runs it.  The kernel runs
    it once for each number, too, when it finds out which calls it can allow without asking the filter.
    """
    numbers = NUMBERS[machine]
    of_call: dict[int, list[Rule]] = {}
    for rule in rules:
        if rule[0] not in LACKED[machine]:
            of_call.setdefault(numbers[rule[0]], []).append(rule)
    code = [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [(JUMP_GREATER_EQUAL, 0, 2, X32_BIT), (JUMP_EQUAL, 1, 0, NO_CALL), (RETURN, 0, 0, KILL)]
    code += _search([(number, _body(of_call[number])) for number in sorted(of_call)])
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _search(calls: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return code that finds the loaded number among `calls` and runs its body; control never leaves it."""
    if len(calls) > _FEW:
        middle = len(calls) // 2
        lower, upper = _search(calls[:middle]), _search(calls[middle:])
        return [*_unless(JUMP_GREATER_EQUAL, calls[middle][0], lower), *upper]
    code: list[Instruction] = []
    for number, body in calls:
        if len(body) <= _FARTHEST:
            code += [(JUMP_EQUAL, 0, len(body), number), *body]
        else:
            code += [(JUMP_EQUAL, 1, 0, number), (JUMP, 0, 0, len(body)), *body]
    return [*code, (RETURN, 0, 0, ALLOW)]


def _unless(test: int, operand: int, code: list[Instruction]) -> list[Instruction]:
    """Return code, and before it a jump over it for when a test succeeds."""
    if len(code) <= _FARTHEST:
        return [(test, len(code), 0, operand), *code]
    return [(test, 0, 1, operand), (JUMP, 0, 0, len(code)), *code]


def _body(rules: Sequence[Rule]) -> list[Instruction]:
    """Return the code that decides about one call, once its number has matched."""
    code: list[Instruction] = []
    for _, condition, values in rules:
        code += _decision(condition, values)
        if condition in _FINAL:
            return code
    return [*code, (RETURN, 0, 0, ALLOW)]


def _decision(condition: str, values: Sequence[int]) -> list[Instruction]:
    """Return code that refuses when a condition holds.

    Else control goes on behind it, except for the conditions in _FINAL.
    """
    refuse = (RETURN, 0, 0, REFUSE)
    if condition in (ALWAYS, ABSENT):
        return [refuse if condition == ALWAYS else (RETURN, 0, 0, LACK)]
    second = (LOAD, 0, 0, _ARGUMENTS_AT + 8)
    if condition in (SECOND_WITHIN, REQUEST_OUTSIDE):
        verdict = refuse if condition == SECOND_WITHIN else (RETURN, 0, 0, ALLOW)
        return [second, *_within(values, verdict), *_FINAL.get(condition, ())]
    count = len(values)
    if condition in (FIRST_NOT, SECOND_NOT):
        load = second if condition == SECOND_NOT else (LOAD, 0, 0, _ARGUMENTS_AT)
        # A match jumps over the rest and the refusal.
        return [load, *((JUMP_EQUAL, count - i, 0, value) for i, value in enumerate(values)), refuse]
    mask = [(AND, 0, 0, TYPE_MASK)] if condition == TYPE_IS else []
    tests = [(JUMP_EQUAL, count - i - 1, 0, value) for i, value in enumerate(values[:-1])]
    # A match jumps to the refusal, which the last test jumps over when it does not match.
    return [second, *mask, *tests, (JUMP_EQUAL, 0, 1, values[-1]), refuse]


def _within(bounds: Sequence[int], verdict: Instruction) -> list[Instruction]:
    """Return code that ends with a verdict if the loaded word is within a pair of bounds, both included."""
    code: list[Instruction] = []
    for first, last in zip(bounds[::2], bounds[1::2], strict=True):
        if first == last:
            code += [(JUMP_EQUAL, 0, 1, first), verdict]
        else:
            code += [(JUMP_GREATER_EQUAL, 0, 2, first), (JUMP_GREATER_EQUAL, 1, 0, last + 1), verdict]
    return code


# Conditions after which nothing is left to decide, with the code for the case that they hold.
_FINAL: dict[str, tuple[Instruction, ...]] = {
    ALWAYS: (),
    ABSENT: (),
    REQUEST_OUTSIDE: ((RETURN, 0, 0, MISFIT),),
}


def prepare(kernel: Kernel) -> None:
    """Make the programs of all filters beforehand, so that forked children do not have to."""
    for name in (FILTER_NONE, *_TABLES):
        for namespaces in (True, False):
            _program_of(kernel, name, namespaces)


def install(kernel: Kernel, syscall_filter: str, namespaces: bool = True) -> None:
    """Put the calling thread and all that it starts under a filter.  Needs no_new_privs.  Raises OSError."""
    code = _program_of(kernel, syscall_filter, namespaces)
    if code:
        install_program(kernel, code)


def _program_of(kernel: Kernel, syscall_filter: str, namespaces: bool) -> bytes:
    key = syscall_filter if namespaces else f"{syscall_filter} without namespaces"
    code = kernel.programs.get(key)
    if code is None:
        rules = rules_of(syscall_filter, namespaces)
        code = kernel.programs[key] = program(rules, kernel.machine) if rules else b""
    return code


def check(kernel: Kernel) -> None:
    """Raise OSError unless this process is under a filter already."""
    if kernel.call("prctl", _PR_GET_SECCOMP) != _MODE_FILTER:
        raise OSError(errno.EPERM, "there is no filter of system calls")


def install_program(kernel: Kernel, code: bytes) -> None:
    """Put the calling thread and all that it starts under a filter program.  Raises OSError."""
    import ctypes

    # One buffer for `struct sock_fprog` and, behind it, the program that it points to: neither can be freed
    # before the other.
    program = ctypes.create_string_buffer(bytes(_PROGRAM.size) + code, _PROGRAM.size + len(code))
    behind = ctypes.addressof(program) + _PROGRAM.size
    _PROGRAM.pack_into(program, 0, len(code) // _INSTRUCTION.size, behind)
    kernel.call("seccomp", _SET_MODE_FILTER, 0, program)


def code_of(call: Sequence[object]) -> bytes | None:
    """Return the program of a recorded `install_program`; None for any other call."""
    number, _, _, program, *_ = call
    if number != number_of(os.uname().machine, "seccomp"):
        return None
    return bytes(program)[_PROGRAM.size :]  # type: ignore[call-overload, no-any-return]
