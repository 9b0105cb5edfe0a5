"""Entry point of a line searcher: matches a regular expression against what it is sent, and opens nothing.

Patterns can take for ever and as much memory as they like, so they are matched here, in a process that its
starter kills at a time limit and that has limits of its own.  Frames come on stdin and go to stdout, each
with its length in four bytes before it; end of input ends it.  The first frame is `FLAGS PATTERN`, answered
with an empty frame or the complaint about it; each other one is a file's content, answered with its matches.
"""

from __future__ import annotations

import os
import re
import resource
import struct
import sys

IGNORE_CASE = b"i"
LITERAL = b"l"
MAX_MATCHES = 1000  # of one content
MAX_LINE = 1024  # characters of a line that are told

_MEMORY_BYTES = 1 << 30
_CPU_S = 60
_LENGTH = struct.Struct(">I")
_MATCH = struct.Struct(">III")  # line, column, bytes of the text that follows


def main() -> int:
    """Serve until the input ends; return the exit status."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    first = _receive()
    if first is None:
        return 0
    flags, _, pattern = first.partition(b" ")
    try:
        compiled = _compiled(flags, pattern.decode("utf-8", "surrogateescape"))
    except (re.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        _send((str(error) or type(error).__name__).encode("utf-8", "replace"))
        return 1
    _send(b"")
    while (content := _receive()) is not None:
        _send(_matches(compiled, content))
    return 0


def _compiled(flags: bytes, pattern: str) -> re.Pattern[str]:
    if LITERAL in flags:
        pattern = re.escape(pattern)
    return re.compile(pattern, re.IGNORECASE if IGNORE_CASE in flags else 0)


def _matches(pattern: re.Pattern[str], content: bytes) -> bytes:
    """Return the lines with a match: each with its number, the first match's column and its text."""
    found: list[bytes] = []
    search = pattern.search
    for number, line in enumerate(content.decode("utf-8", "surrogateescape").split("\n"), 1):
        match = search(line)
        if match is None:
            continue
        text = line[:MAX_LINE].encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()
        found.append(_MATCH.pack(number, match.start() + 1, len(text)) + text)
        if len(found) == MAX_MATCHES:
            break
    return b"".join(found)


def _receive() -> bytes | None:
    head = _exactly(_LENGTH.size)
    return None if head is None else _exactly(_LENGTH.unpack(head)[0])


def _exactly(length: int) -> bytes | None:
    return data if len(data := sys.stdin.buffer.read(length)) == length else None


def _send(frame: bytes) -> None:
    data = _LENGTH.pack(len(frame)) + frame
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main())
