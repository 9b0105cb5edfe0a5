"""The error texts of failed process starts (wire contract, section 8.1).

For a terminal the reference server looks the program up itself and has a text for each refusal; everything
else is the text of the operating system.  If a program for a terminal is found and cannot be executed, this
server answers with the error; reference server 0.142.0 starts a process that prints an abort text and exits
with 1.
"""

from __future__ import annotations

import enum
import errno as _errno
import os
import unicodedata

from execserver.protocol.errors import InternalError, os_error_text


class LookupRefusal(enum.Enum):
    """Why no program was found for a terminal."""

    NOT_IN_PATH = enum.auto()
    NO_PATH = enum.auto()
    MISSING = enum.auto()
    MISSING_RELATIVE = enum.auto()
    NOT_EXECUTABLE = enum.auto()
    NOT_EXECUTABLE_RELATIVE = enum.auto()
    IS_DIRECTORY = enum.auto()


class CandidateFault(enum.Enum):
    """What was wrong with a file that PATH led to."""

    DIRECTORY = "is a directory"
    NOT_EXECUTABLE = "is not executable"


def missing_program(tty: bool) -> InternalError:
    """Return the error of an empty program name."""
    return InternalError(f"missing program for {'PTY' if tty else 'pipe'} spawn")


def nul_byte() -> InternalError:
    """Return the error of a NUL byte in an argument or in the environment."""
    return InternalError("nul byte found in provided data")


def os_failure(number: int) -> InternalError:
    """Return the error of a cwd or program that the operating system refused."""
    return InternalError(os_error_text(number))


def start_timed_out(seconds: float) -> InternalError:
    """Return the error of a start that hangs in the kernel for `seconds`."""
    return InternalError(
        f"process start timed out after {seconds:g} s (the program or its folder does not answer)"
    )


def too_many_hanging(count: int) -> InternalError:
    """Return the error of a start that is refused because `count` earlier ones still hang."""
    return InternalError(f"process start refused: {count} earlier starts hang (their folders do not answer)")


def starter_lost() -> InternalError:
    """Return the error of a start whose outcome is lost: its zygote died."""
    return InternalError("process start failed: the process that starts programs ended unexpectedly")


def shutting_down() -> InternalError:
    """Return the error of a start during the shutdown of the server."""
    return InternalError("process start refused: the server is shutting down")


def lookup_refused(
    refusal: LookupRefusal,
    program: bytes,
    number: int = 0,
    path: bytes = b"",
    candidates: tuple[tuple[CandidateFault, bytes], ...] = (),
) -> InternalError:
    """Return the error of a program that cannot be run on a terminal.

    `number` is the errno of the failed access, `path` the child's PATH, `candidates` the unusable files that
    PATH led to.
    """
    name = _display(program)
    # `MISSING_RELATIVE` and its like have no errno in their texts, so `format` below leaves it out.
    if refusal is LookupRefusal.NOT_IN_PATH:
        lines = [f"{_display(file)} exists but {fault.value}" for fault, file in candidates]
        lines.append(f"No viable candidates found in PATH {_quoted(path)}")
        return InternalError(f"Unable to spawn {name} because:\n" + ".\n".join(lines))
    if refusal is LookupRefusal.NO_PATH:
        return InternalError(f"Unable to spawn {name} because:\nUnable to resolve the PATH")
    return InternalError(f"Unable to spawn {name} because {_REASONS[refusal].format(_access_text(number))}")


_REASONS = {
    LookupRefusal.MISSING: "it doesn't exist on the filesystem ({})",
    LookupRefusal.MISSING_RELATIVE: "it does not exist",
    LookupRefusal.NOT_EXECUTABLE: "it is not executable ({})",
    LookupRefusal.NOT_EXECUTABLE_RELATIVE: "it is not executable",
    LookupRefusal.IS_DIRECTORY: "it is a directory",
}


def _access_text(number: int) -> str:
    """Return the reference server's text for an errno: its name, then the text of a table of its own."""
    name = _errno.errorcode.get(number, "UnknownErrno")
    text = "Too many symbolic links encountered" if number == _errno.ELOOP else os.strerror(number)
    return f"{name}: {text}"


def _display(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _quoted(text: bytes) -> str:
    """Quote as the reference server does: control and combining characters by number, stray bytes in hex."""
    return '"' + "".join(_escaped(char) for char in text.decode("utf-8", "surrogateescape")) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if 0xDC80 <= ord(char) <= 0xDCFF:
        return f"\\x{ord(char) - 0xDC00:02X}"
    if not char.isprintable() or unicodedata.category(char) in ("Mn", "Me"):
        return f"\\u{{{ord(char):x}}}"
    return char


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
