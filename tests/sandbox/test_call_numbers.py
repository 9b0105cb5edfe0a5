"""The numbers of system calls are those of the kernel's headers, for both CPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from execserver.sandbox.kernel import syscalls
from execserver.sandbox.kernel.seccomp_numbers import LACKED, NUMBERS
from execserver.zygote.supervision.stand_in.registers import REGISTERS
from execserver.zygote.supervision.trap import notify

# aarch64 has the calls of new architectures, and none of the older ones that these replace.
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
DEFINED = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)


def defined(machine: str) -> dict[str, int]:
    """Return the numbers of a machine's header, by name; skips without one."""
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"there is no {header} on this machine")
    return {name: int(number) for name, number in DEFINED.findall(header.read_text())}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_header(machine: str) -> None:
    known = defined(machine)
    for table in (NUMBERS[machine], syscalls._NUMBERS[machine]):
        # An older header lacks the newest calls.
        assert {name: number for name, number in table.items() if known.get(name, number) != number} == {}


@pytest.mark.parametrize("machine", HEADERS)
def test_calls_of_a_program_are_known_alike_wherever_they_are_intercepted(machine: str) -> None:
    known, layout = defined(machine), REGISTERS[machine]
    assert notify._CALLS[machine][:2] == (layout.execve, layout.execveat)
    assert (layout.execve, layout.execveat) == (known["execve"], known["execveat"])
    assert layout.exit_group == known["exit_group"]


def test_what_a_machine_lacks_is_in_no_header_of_it() -> None:
    assert LACKED["aarch64"].isdisjoint(defined("aarch64"))


def test_every_call_that_is_made_has_a_number_on_both() -> None:
    """No code path needs a call that aarch64 never had."""
    assert syscalls._NUMBERS["aarch64"].keys() == syscalls._NUMBERS["x86_64"].keys()
