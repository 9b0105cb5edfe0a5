"""What a command wrote, in the order in which it came, up to the caps of the shell tool contract (section 3).

Of each stream the first MiB is kept and the rest is read and dropped, so no command ever waits for room.  Of
the two together the answer holds one MiB: a third of it is stdout's and two thirds are stderr's, and what
stderr does not use is stdout's, too.  The reference gives stdout before stderr; here both stand in the order
of arrival, as far as two pipes tell it.  What a command wrote before it was ended is kept like all else.

Bytes that are not UTF-8 come as U+FFFD; a character that arrives in two pieces is still one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

STREAM_BYTES = 1024 * 1024
TOTAL_BYTES = 1024 * 1024
_STDOUT_SHARE = TOTAL_BYTES // 3

STDOUT, STDERR = "stdout", "stderr"
_STREAMS = (STDOUT, STDERR)


class Capture:
    """The output of one command; holds at most four MiB."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._sources = bytearray()  # for each byte, which stream it came from
        self._kept = [0, 0]
        self._dropped = [False, False]

    def add(self, stream: str, data: bytes) -> None:
        """Take a chunk of `stdout` or `stderr`; what is above the stream's cap is dropped."""
        source = _STREAMS.index(stream)
        room = STREAM_BYTES - self._kept[source]
        if len(data) > room:
            self._dropped[source] = True
            data = data[:room]
        self._kept[source] += len(data)
        self._data += data
        self._sources += bytes((source,)) * len(data)

    def stream(self, stream: str) -> bytes:
        """Return what is kept of one stream."""
        source = _STREAMS.index(stream)
        return b"".join(piece for of, piece in self._runs() if of == source)

    def joined(self) -> bytes:
        """Return what is kept of both streams, in the order of arrival."""
        return bytes(self._data)

    def text(self) -> str:
        """Return the output as the answer shows it: both streams, each up to its share."""
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS]
        left = _shares(*self._kept)
        cut = [self._dropped[source] or left[source] < self._kept[source] for source in (0, 1)]
        pieces = []
        for source, piece in self._runs():
            piece = piece[: left[source]]
            left[source] -= len(piece)
            # Half a character at the cut is no byte that the command got wrong.
            last = not left[source] and not cut[source]
            pieces.append(decoders[source].decode(piece, last) if piece else "")
        return "".join(pieces)

    def _runs(self) -> Iterator[tuple[int, bytes]]:
        """Yield stretches of one stream each."""
        start, end = 0, len(self._data)
        while start < end:
            source = self._sources[start]
            stop = self._sources.find(1 - source, start)
            stop = end if stop < 0 else stop
            yield source, bytes(self._data[start:stop])
            start = stop


def decoded(data: bytes) -> str:
    """Return bytes of one stream as text, what is not UTF-8 as U+FFFD."""
    return data.decode("utf-8", "replace")


def _shares(stdout: int, stderr: int) -> list[int]:
    """Return how many bytes of each stream the answer holds."""
    of_stdout = min(stdout, _STDOUT_SHARE)
    of_stderr = min(stderr, TOTAL_BYTES - of_stdout)
    return [min(stdout, TOTAL_BYTES - of_stderr), of_stderr]
