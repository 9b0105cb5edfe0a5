"""Was it the sandbox that made a process fail?  The contract's guess from exit code and output (section 9.8).

Made once, when the process exits, from what is retained of its output then.  It may be wrong either way, and
clients rely on it as it is.
"""

from __future__ import annotations

WAIT_S = 0.02  # for output that was written before the exit and is still on its way

_WORDS = (
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "seccomp",
    "sandbox",
    "landlock",
    "failed to write file",
)
_ASCII_WORDS = tuple(word.encode() for word in _WORDS)
_BAD_SYSTEM_CALL = 128 + 31


def looks_denied(exit_code: int, stdout: bytes, stderr: bytes, joined: bytes) -> bool:
    """Tell whether a sandboxed process was probably held back.

    `stdout` is also what a terminal showed; `joined` is all output in the order it came.
    """
    if exit_code == 0:
        return False
    if any(map(_tells_of_denial, (stderr, stdout, joined))):
        return True
    return exit_code == _BAD_SYSTEM_CALL


def _tells_of_denial(output: bytes) -> bool:
    lower = output.lower()
    if any(word in lower for word in _ASCII_WORDS):
        return True
    if output.isascii():
        return False
    text = output.decode(
        "utf-8", "replace"
    ).lower()  # some letters that are not ASCII have small ones that are
    return any(word in text for word in _WORDS)
