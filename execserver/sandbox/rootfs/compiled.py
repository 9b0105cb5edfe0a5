"""A recorded sandbox root as bytes, for the compiled init (launcher/init), which plays them as Python does.

Nothing is decided here: each step is one of the recording.  A recording with a step that the compiled init
does not know, or one that is too large for a message, has no such form, and Python serves its starts.
"""

from __future__ import annotations

import ctypes
import os
import struct

from execserver.sandbox.identity import check_identity
from execserver.sandbox.kernel.landlock import WRITE_FILE
from execserver.sandbox.kernel.mounts import check_device
from execserver.sandbox.kernel.seccomp import INSTRUCTION_BYTES, code_of
from execserver.sandbox.rootfs.landlock_rules import allow_stdio
from execserver.sandbox.rootfs.recorded import GIVEN_CONSOLE, RecordedRoot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from execserver.sandbox.rootfs.recording import Step

MOST_BYTES = 64 * 1024  # of a message
MOST_COVERS = 64
PLAN = 2  # the kind of a message

# Kinds of steps: a call that must have the recorded result, one that may have any, and what is no call.
_TO_RESULT, _TO_ANY, _SESSION, _DEVICE, _IDENTITY, _COVER, _STDIO, _FILTER = range(8)
_ARGUMENTS = 6
_STEP = struct.Struct("<HHIq6Q")
_HEAD = struct.Struct("<IIQII")  # kind, size, number, slot, covers; then the counts of the parts, and _SIZE
_SIZE = struct.Struct("<I")
_ALIGNED = 8
_WORD = (1 << 64) - 1


class CompiledRoot:
    """The bytes of one recorded sandbox root; `covers` is how many mask targets a start may bring."""

    __slots__ = ("_tail", "covers")

    def __init__(self, covers: int, tail: bytes) -> None:
        self.covers = covers
        self._tail = tail

    def message(self, slot: int, number: int) -> bytes:
        """Return the message that puts it into a slot of a template, under a number above 0."""
        return _HEAD.pack(PLAN, _HEAD.size + len(self._tail), number, slot, self.covers) + self._tail


def compiled(root: RecordedRoot) -> CompiledRoot | None:
    """Return the compiled form of a recorded sandbox root; None where it has none."""
    data, steps, counts = _Data(), [], []
    for part in root.parts:
        counts.append(len(part.steps))
        for step in part.steps:
            encoded = _encoded(step, data)
            if encoded is None:
                return None
            steps.append(encoded)
    content = data.content()
    tail = struct.pack(f"<{len(counts)}I", *counts) + _SIZE.pack(len(content)) + b"".join(steps) + content
    if len(tail) + _HEAD.size > MOST_BYTES or len(root.missing) > MOST_COVERS:
        return None
    return CompiledRoot(len(root.missing), tail)


class _Data:
    """The data area: what pointers lead to, each ended by a NUL, as the bytes objects of a recording are."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._places: dict[bytes, int] = {}

    def place(self, content: bytes, shared: bool) -> int:
        """Return where some bytes are; the kernel writes into what is not `shared` with equal bytes."""
        if shared and content in self._places:
            return self._places[content]
        place = self._size
        if shared:
            self._places[content] = place
        piece = content + bytes(_ALIGNED - len(content) % _ALIGNED)
        self._pieces.append(piece)
        self._size += len(piece)
        return place

    def content(self) -> bytes:
        return b"".join(self._pieces) or bytes(_ALIGNED)


def _encoded(step: Step, data: _Data) -> bytes | None:
    act, given, expected = step
    kind, numbers = _meaning(act, given)
    if kind is not None:
        return _STEP.pack(kind, 0, 0, 0, *numbers, *[0] * (_ARGUMENTS - len(numbers)))
    number, *arguments = given
    if not hasattr(act, "argtypes") or not isinstance(number, int):
        return None  # no system call
    code = code_of(given)
    if code is not None:  # by itself, since it leads to an address
        numbers = data.place(code, shared=True), len(code) // INSTRUCTION_BYTES
        return _STEP.pack(_FILTER, 1, 0, 0, *numbers, *[0] * (_ARGUMENTS - len(numbers)))
    words, pointers = [], 0
    for index, argument in enumerate(arguments):
        if argument is GIVEN_CONSOLE:
            words.append(0)
            pointers |= 1 << index + 8
        elif isinstance(argument, bytes) or _is_buffer(argument):
            words.append(data.place(bytes(argument), isinstance(argument, bytes)))
            pointers |= 1 << index
        elif argument is None or isinstance(argument, int):
            words.append((argument or 0) & _WORD)
        else:
            return None
    if expected is None:
        return _STEP.pack(_TO_ANY, pointers, number, 0, *words)
    return _STEP.pack(_TO_RESULT, pointers, number, expected, *words)


def _is_buffer(argument: object) -> TypeGuard[ctypes.Array[ctypes.c_char]]:
    """Tell whether an argument is plain memory: an array of addresses would mean nothing elsewhere."""
    return isinstance(argument, ctypes.Array) and argument._type_ is ctypes.c_char


def _meaning(act: Callable[..., object], given: Sequence[object]) -> tuple[int | None, Sequence[object]]:
    """Return the kind and the numbers of a step that is no call; None for any other."""
    if act is os.setsid:
        return _SESSION, ()
    if act is check_device:
        return _DEVICE, given
    if act is check_identity:
        identity, opened = given
        return (_IDENTITY, (opened, *identity)) if isinstance(identity, tuple) else (None, ())
    if getattr(act, "__func__", None) is RecordedRoot.check_cover:
        return _COVER, given
    if act is allow_stdio:
        return _STDIO, (*given[1:], WRITE_FILE)
    return None, ()
