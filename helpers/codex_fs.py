"""Entry point of `codex-fs`: one file request on stdin, one reply on stdout, and the end.

The request is one JSON text up to the end of the input, the reply one JSON text and a line end.  An operation
that fails is a reply, too.  Exit status 1 and a text on stderr are for a malformed request, and for a reply
that cannot be written to its end.  Arguments are ignored, as in the reference.  There is no time limit; a
request may be as long as the largest readable file is as base64.

A request whose `sandbox` restricts files is performed by a fork of this process, in the sandbox root of its
policy, or refused.  No server is needed for that.
"""

from __future__ import annotations

import os

from execserver.protocol.errors import InvalidParams, RpcError, from_os_error, os_error_text
from execserver.protocol.json_text import NotJson, parse, quote

from .fs_operations import NeedsSandbox, perform
from .fs_request import FileRequest, read_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execserver.sandbox.files.operations import GuardedFiles

MAX_REQUEST_BYTES = 768 * 1024 * 1024

# Names a descriptor with what launcher/plain.c has read of a request that it leaves to this program.
_READ_AHEAD = b"_EXECSERVER_READ_AHEAD"

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_PIPE_BYTES = 64 * 1024  # what a pipe holds
_MOST_AT_ONCE = 16 * 1024 * 1024
_UNREADABLE_STATUS = 1
_INTERRUPTED_STATUS = 130


class _RequestTooLarge(Exception):
    """The input is longer than MAX_REQUEST_BYTES."""


def main() -> int:
    """Answer the request on stdin; return the exit status."""
    return _ending_well(_answer_input)


def _answer_input() -> int:
    # Whoever started this shares the open files, and may have made them non-blocking.
    os.set_blocking(_STDIN, True)
    os.set_blocking(_STDOUT, True)
    request = read_request(parse(_read_input()))
    try:
        return _answer(request)
    except NeedsSandbox:
        return _answer_confined(request)


def _ending_well(function: Callable[[], int]) -> int:
    """Call a function that answers; return its exit status, or that of an input or output that failed."""
    try:
        return function()
    except OSError as error:
        return _give_up(os_error_text(error.errno or 0))
    except (InvalidParams, NotJson, _RequestTooLarge) as error:
        return _give_up(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED_STATUS


def _answer(request: FileRequest, guarded: GuardedFiles | None = None) -> int:
    for piece in reply(request, guarded):
        _write(piece)
    return 0


def _answer_confined(request: FileRequest) -> int:
    """Answer in a fork of this process, in a sandbox root."""
    from .fs_confined import call_confined  # here: callers that need no sandbox do not pay for the import

    assert request.sandbox is not None
    try:
        return call_confined(request.sandbox, lambda guarded: _ending_well(lambda: _answer(request, guarded)))
    except RpcError as error:
        _write(_error_reply(error))
        return 0


def reply(request: FileRequest, guarded: GuardedFiles | None = None) -> Iterator[bytes]:
    """Perform a request and yield its reply in pieces; `guarded` are the operations in a sandbox root.

    Raises NeedsSandbox before anything is done, and OSError only after the first piece, where a file cannot
    be read to its end.
    """
    pieces = perform(request, guarded)
    # With the first piece the operation has succeeded or failed.  Before it, a failure can still be a reply.
    try:
        first = next(pieces)
    except OSError as error:
        yield _error_reply(from_os_error(error))
        return
    except RpcError as error:
        yield _error_reply(error)
        return
    head = f'{{"status":"ok","payload":{{"operation":{quote(request.operation)},"response":'
    yield head.encode() + first
    yield from pieces
    yield b"}}\n"


def _error_reply(error: RpcError) -> bytes:
    payload = f'{{"code":{error.code},"message":{quote(error.message)}}}'
    return f'{{"status":"error","payload":{payload}}}\n'.encode("utf-8", "replace")


def _read_input() -> bytes:
    """Return everything up to the end of the input."""
    parts = []
    total = 0
    size = _PIPE_BYTES
    if (ahead := os.environb.pop(_READ_AHEAD, b"")).isdigit():
        while part := os.read(int(ahead), _PIPE_BYTES):
            parts.append(part)
            total += len(part)
        os.close(int(ahead))
    while part := os.read(_STDIN, size):
        parts.append(part)
        total += len(part)
        if total > MAX_REQUEST_BYTES:
            raise _RequestTooLarge(f"request is too large: limit is {MAX_REQUEST_BYTES} bytes")
        if len(part) == size:
            size = min(size * 2, _MOST_AT_ONCE)
    return b"".join(parts)


def _write(data: bytes) -> None:
    with memoryview(data) as rest:
        written = 0
        while written < len(rest):
            written += os.write(_STDOUT, rest[written:])


def _give_up(reason: str) -> int:
    try:
        os.write(_STDERR, f"fs sandbox helper failed: {reason}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # the exit status still says it
    return _UNREADABLE_STATUS
