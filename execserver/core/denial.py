"""Did the sandbox make a process fail?  The contract's guess from exit code and output (section 9.8).

It is made once, when the process exits, from the output retained at that moment.  It may be wrong either way,
and clients rely on it as it is.
"""

from __future__ import annotations

WAIT_S = 0.02  # for output written before the exit and still on its way; the reference server waits as long

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
    """Return whether the sandbox probably denied something to a process.

    `stdout` is also the output of a terminal; `joined` is all output in the order it came.
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
