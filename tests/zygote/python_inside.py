"""Programs in Python that run inside, with system calls by number."""

from __future__ import annotations

import textwrap

HEAD = """
import ctypes, errno, mmap, os, signal, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return result if result >= 0 else -ctypes.get_errno()
def vector(*words):
    return (ctypes.c_char_p * (len(words) + 1))(*words)
def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def python(code: str) -> str:
    """Return a command that runs a program in Python."""
    return f"exec python3 -I -S - <<'THE END'\n{HEAD}\n{textwrap.dedent(code)}\nTHE END\n"
