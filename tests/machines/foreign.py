"""A program of the processor's other architecture: i386 on x86-64, AArch32 on aarch64.  It only exits."""

from __future__ import annotations

import os
import struct

STATUS = 42
SIGSYS = 31
_BASE = 0x10000
_HEAD, _SEGMENT = struct.Struct("<16sHHIIIIIHHHHHH"), struct.Struct("<8I")
# ELF's number of the machine, and the code of `exit(42)`.
_CODES = {
    "x86_64": (3, bytes.fromhex("b801000000bb2a000000cd80")),
    "aarch64": (40, bytes.fromhex("2a00a0e30170a0e3000000ef")),
}
_FLAGS = {"x86_64": 0, "aarch64": 0x05000000}  # of Arm: version 5 of its ABI


def program(machine: str = os.uname().machine) -> bytes:
    """Return the program's file for a 64-bit machine."""
    number, code = _CODES[machine]
    start = _HEAD.size + _SEGMENT.size
    ident = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    head = _HEAD.pack(
        *(ident, 2, number, 1, _BASE + start, _HEAD.size, 0, _FLAGS[machine]),
        *(_HEAD.size, _SEGMENT.size, 1, 0, 0, 0),
    )
    size = start + len(code)
    return head + _SEGMENT.pack(1, 0, _BASE, _BASE, size, size, 5, 0x10000) + code
