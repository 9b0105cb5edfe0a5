"""A process that swaps two names in a directory as fast as it can, for tests of races."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType

_PROGRAM = """
import ctypes, os, sys
swap = ctypes.CDLL(None, use_errno=True).syscall
left, right = (os.fsencode(name) for name in sys.argv[1:])
print(flush=True)
while os.getppid() == PARENT:
    for _ in range(1000):
        swap(ctypes.c_long(NUMBER), -100, left, -100, right, 2)
"""
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}


class Swapper:
    """Swaps two names while the `with` block runs; afterwards either may be where it was."""

    def __init__(self, left: bytes, right: bytes) -> None:
        program = _PROGRAM.replace("NUMBER", str(_RENAMEAT2[os.uname().machine]))
        self._command = [sys.executable, "-c", program.replace("PARENT", str(os.getpid()))]
        self._names = [os.fsdecode(left), os.fsdecode(right)]

    def __enter__(self) -> Swapper:
        self._process = subprocess.Popen([*self._command, *self._names], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
