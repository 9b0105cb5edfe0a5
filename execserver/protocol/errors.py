"""The errors of the wire contract: one class for each code, and the translation from OSError.

Standard library only, so that helper processes can raise the same errors.  The texts of operating system
errors are those of musl, with which the reference server is linked: clients compare them.
"""

from __future__ import annotations

import errno as _errno
import os


class RpcError(Exception):
    """An error answer: the class has its `code`, the message goes to the client."""

    code = -32603
    data: dict[str, object] | None = None  # further facts for the client, as the member `data` of the error

    def __init__(self, message: str) -> None:
        # Without the base's, which would take as long as all else: what it notes is noted before.
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidRequest(RpcError):
    """Wrong state, unknown process, malformed message, or a refusal by argument or permission."""

    code = -32600


class MethodNotFound(RpcError):
    """The method is not in the method table."""

    code = -32601

    def __init__(self, method: str) -> None:
        super().__init__(f"exec-server stub does not implement `{method}` yet")


class InvalidParams(RpcError):
    """The params could not be decoded, or one value was refused before anything was done."""

    code = -32602


class InternalError(RpcError):
    """The operating system or a peer failed."""

    code = -32603


class NotFound(RpcError):
    """The file or the file handle does not exist."""

    code = -32004


class SessionAlreadyAttached(RpcError):
    """Another live connection holds the session; the client may try again."""

    code = -32010

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is already attached to another connection")


# Where musl's text differs from that of the C library of this interpreter.
_MUSL_TEXTS = {
    _errno.EIO: "I/O error",
    _errno.ECHILD: "No child process",
    _errno.ENOMEM: "Out of memory",
    _errno.ENOTBLK: "Block device required",
    _errno.EBUSY: "Resource busy",
    _errno.EXDEV: "Cross-device link",
    _errno.ENFILE: "Too many open files in system",
    _errno.EMFILE: "No file descriptors available",
    _errno.ENOTTY: "Not a tty",
    _errno.ETXTBSY: "Text file busy",
    _errno.ESPIPE: "Invalid seek",
    _errno.EDEADLK: "Resource deadlock would occur",
    _errno.ENAMETOOLONG: "Filename too long",
    _errno.ELOOP: "Symbolic link loop",
    _errno.EOVERFLOW: "Value too large for data type",
    _errno.ENOTSOCK: "Not a socket",
    _errno.EOPNOTSUPP: "Not supported",
    _errno.EADDRINUSE: "Address in use",
    _errno.EADDRNOTAVAIL: "Address not available",
    _errno.ENETUNREACH: "Network unreachable",
    _errno.ETIMEDOUT: "Operation timed out",
    _errno.EHOSTUNREACH: "Host is unreachable",
    _errno.ESTALE: "Stale file handle",
    _errno.EDQUOT: "Quota exceeded",
}

_NOT_FOUND = frozenset({_errno.ENOENT})
_REFUSED = frozenset({_errno.EACCES, _errno.EPERM, _errno.EINVAL})
# The C library looks for a translation each time, which is a tenth of a request for a missing file.
_remembered: dict[int, str] = {}


def strerror(number: int) -> str:
    """Return musl's text for an errno value."""
    return _MUSL_TEXTS.get(number) or os.strerror(number)


def os_error_text(number: int) -> str:
    """Return the contract's text for an operating system error, e.g. `File exists (os error 17)`."""
    text = _remembered.get(number)
    if text is None:
        text = _remembered[number] = f"{strerror(number)} (os error {number})"
    return text


def from_os_error(error: OSError) -> RpcError:
    """Translate a failed file system call (wire contract, section 12: codes of `fs/*`)."""
    number = error.errno if error.errno is not None else _errno.EIO
    if number in _NOT_FOUND:
        return NotFound(os_error_text(number))
    if number in _REFUSED:
        return InvalidRequest(os_error_text(number))
    return InternalError(os_error_text(number))
