"""The Landlock stage: the last step before a command in a sandbox root that bubblewrap made.

Bubblewrap mounts, so it cannot be under file rules itself; and a program of the host may be missing, or be
another one, in a sandbox root.  So bubblewrap executes the stage from a descriptor: a program of a few
hundred bytes that is made for each command.  The stage

- adds rules for what exists only in the sandbox root to a ruleset that it has inherited,
- takes on the ruleset and closes both descriptors,
- and executes the first file that execvp would.

It touches no variable and reads no file.  If anything fails, it says so on stderr and exits with 1: the
command never runs without the rules.
"""

from __future__ import annotations

import errno
import os
import struct

from execserver.sandbox.backends.stage_code import BASE, CODE, DATA, KNOWN_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IDENT = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_LOAD, _STACK, _EXECUTE, _WRITE, _READ = 1, 0x6474E551, 1, 2, 4
_WORDS = struct.Struct("<9Q")
_WORD = struct.Struct("<Q")
_RULE = struct.Struct("<QQ")
_TEXT_BYTES = 64
_MFD_EXEC = 0x10  # needed where vm.memfd_noexec is 1, unknown before Linux 6.3

_SHELL = b"/bin/sh"
_REFUSED = b"codex-linux-sandbox: Landlock refuses what closes FIFOs and devices outside: "


def _error_texts() -> bytes:
    """Return the texts of all errors, each with its length before it and a line end behind it."""
    found = []
    for number in range(KNOWN_ERRORS):
        text = (os.strerror(number) if number else "unknown error").encode()[: _TEXT_BYTES - 2] + b"\n"
        found.append((bytes((len(text),)) + text).ljust(_TEXT_BYTES, b"\0"))
    return b"".join(found)


_TEXTS = _error_texts()  # here, once: each start would pay 0.1 ms for them


class Stage:
    """What a stage has to do: the rules to add, as right and path in the sandbox root, and what to execute.

    `candidates` are the files to try in order; `name` is what a message of failure calls the command.
    """

    __slots__ = ("candidates", "name", "rules")

    def __init__(self, rules: Sequence[tuple[int, bytes]], candidates: Sequence[bytes], name: bytes) -> None:
        self.rules = rules
        self.candidates = candidates
        self.name = name

    def image(self, machine: str, ruleset: int, own: int) -> bytes:
        """Return the program for a machine; `ruleset` and `own` are the two descriptors that it closes."""
        code = CODE[machine]
        count = _WORDS.size + _RULE.size * len(self.rules) + _WORD.size * (len(self.candidates) + 2)
        strings = _Strings(DATA + count + len(_TEXTS))
        failed = strings.add(b"bwrap: execvp " + self.name + b": ")
        refused, shell = strings.add(_REFUSED), strings.add(_SHELL)
        rules = b"".join(_RULE.pack(rights, strings.add(path)[0]) for rights, path in self.rules)
        files = b"".join(_WORD.pack(strings.add(path)[0]) for path in self.candidates)
        to_try = DATA + _WORDS.size + len(rules) + _WORD.size  # behind the rules and their 0
        words = _WORDS.pack(ruleset, own, to_try, *failed, *refused, shell[0], DATA + count)
        lists = words + rules + _WORD.pack(0) + files + _WORD.pack(0)
        size = DATA - BASE + len(lists) + len(_TEXTS) + len(strings.content)
        before = elf_heads(machine, size) + code
        return before.ljust(DATA - BASE, b"\0") + lists + _TEXTS + bytes(strings.content)


class _Strings:
    """Strings that end with NUL, laid out one after the other from an address on."""

    def __init__(self, address: int) -> None:
        self._address = address
        self.content = bytearray()

    def add(self, text: bytes) -> tuple[int, int]:
        """Add a string; return its address and length."""
        place = self._address + len(self.content)
        self.content += text + b"\0"
        return place, len(text)


def reserve() -> int:
    """Return an inheritable descriptor of an empty file in memory that may be executed.

    Raises OSError where the kernel executes no such file.
    """
    try:
        return os.memfd_create("execserver", _MFD_EXEC)
    except OSError as error:
        if error.errno == errno.EACCES:
            reason = "the kernel executes no file in memory, as closing FIFOs takes (vm.memfd_noexec is 2)"
            raise OSError(errno.EACCES, reason, None) from None
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("execserver", 0)


def elf_heads(machine: str, size: int) -> bytes:
    """Return the head of a program file of one segment; the code begins right behind it."""
    start = _HEAD.size + 2 * _SEGMENT.size
    head = _HEAD.pack(
        *(_IDENT, 2, _MACHINES[machine], 1, BASE + start, _HEAD.size, 0, 0),
        *(_HEAD.size, _SEGMENT.size, 2, 0, 0, 0),
    )
    load = _SEGMENT.pack(_LOAD, _READ | _EXECUTE, 0, BASE, BASE, size, size, 0x10000)
    return head + load + _SEGMENT.pack(_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
