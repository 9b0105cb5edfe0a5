"""The filter table turned into the kernel's filter program, and its installation.

A program is a run of 8-byte instructions (`struct sock_filter`): code, jump if true, jump if false, operand.
It loads words of `struct seccomp_data`: the call's number at 0, the architecture at 4, the low word of
argument N at 16 + 8N (both architectures are little-endian).
"""

from __future__ import annotations

import errno
import struct

from execserver.sandbox.plan import FILTER_PROXY_ROUTED, FILTER_RESTRICTED
from execserver.sandbox.seccomp_table import (
    ALWAYS,
    ARCHITECTURES,
    DOMAIN_NOT,
    NO_CALL,
    NUMBERS,
    PROXY_ROUTED,
    RESTRICTED,
    TYPE_MASK,
    X32_BIT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.seccomp_table import Rule
    from execserver.sandbox.syscalls import Kernel

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_GREATER_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | 1  # SECCOMP_RET_ERRNO with EPERM
KILL = 0x80000000  # the whole process

_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENTS_AT = 16
_INSTRUCTION = struct.Struct("<HBBI")
_PROGRAM = struct.Struct("@HP")
_SET_MODE_FILTER = 1
_PR_GET_SECCOMP = 21
_MODE_FILTER = 2

_TABLES = {FILTER_RESTRICTED: RESTRICTED, FILTER_PROXY_ROUTED: PROXY_ROUTED}


def rules_of(syscall_filter: str) -> Sequence[Rule]:
    """Return the rules of a plan's filter; none for FILTER_NONE."""
    return _TABLES.get(syscall_filter, ())


def program(rules: Sequence[Rule], machine: str) -> bytes:
    """Return the filter program of the rules; an unknown machine raises KeyError."""
    numbers = NUMBERS[machine]
    code = [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [(JUMP_EQUAL, 2, 0, NO_CALL), (JUMP_GREATER_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    for name, condition, values in rules:
        body = _body(condition, values)
        code += [(JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _body(condition: str, values: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return what decides once the number matches; it refuses, or falls through with the number loaded."""
    refuse = (RETURN, 0, 0, REFUSE)
    if condition == ALWAYS:
        return [refuse]
    back = (LOAD, 0, 0, _NUMBER_AT)
    count = len(values)
    if condition == DOMAIN_NOT:
        # A match jumps over the rest and the refusal.
        tests = [(JUMP_EQUAL, count - index, 0, value) for index, value in enumerate(values)]
        return [(LOAD, 0, 0, _ARGUMENTS_AT), *tests, refuse, back]
    tests = [(JUMP_EQUAL, count - index - 1, 0, value) for index, value in enumerate(values[:-1])]
    # A match jumps to the refusal, which the last test jumps over when it does not match.
    return [
        (LOAD, 0, 0, _ARGUMENTS_AT + 8),
        (AND, 0, 0, TYPE_MASK),
        *tests,
        (JUMP_EQUAL, 0, 1, values[-1]),
        refuse,
        back,
    ]


def prepare(kernel: Kernel) -> None:
    """Make the programs of all filters, so that forked children need not."""
    for name, rules in _TABLES.items():
        kernel.programs[name] = program(rules, kernel.machine)


def install(kernel: Kernel, syscall_filter: str) -> None:
    """Put the calling thread and all it starts under a filter; needs no_new_privs.  Raises OSError."""
    rules = rules_of(syscall_filter)
    if rules:
        code = kernel.programs.get(syscall_filter)
        if code is None:
            code = kernel.programs[syscall_filter] = program(rules, kernel.machine)
        install_program(kernel, code)


def check(kernel: Kernel) -> None:
    """Raise OSError unless this process is under a filter already."""
    if kernel.call("prctl", _PR_GET_SECCOMP) != _MODE_FILTER:
        raise OSError(errno.EPERM, "there is no filter of system calls")


def install_program(kernel: Kernel, code: bytes) -> None:
    """Put the calling thread and all it starts under a filter program."""
    import ctypes

    # One buffer for `struct sock_fprog` and, behind it, what it points to: they live equally long.
    program = ctypes.create_string_buffer(bytes(_PROGRAM.size) + code, _PROGRAM.size + len(code))
    behind = ctypes.addressof(program) + _PROGRAM.size
    _PROGRAM.pack_into(program, 0, len(code) // _INSTRUCTION.size, behind)
    kernel.call("seccomp", _SET_MODE_FILTER, 0, program)
