"""The output capture: what a command wrote, in the order of arrival, up to the caps of the contract.

The first MiB of each stream is kept; the rest is read and dropped, so no command ever waits for room.  The
answer holds one MiB of both streams: a third of it for stdout, two thirds for stderr, and stdout also gets
what stderr does not use.  The reference server puts stdout before stderr; here both are in the order of
arrival, as far as two pipes show it.  Output from before the command was ended is kept like any other.

Bytes that are not UTF-8 become U+FFFD; a character that arrives in two pieces stays one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

STREAM_BYTES = 1024 * 1024
TOTAL_BYTES = 1024 * 1024
_STDOUT_SHARE = TOTAL_BYTES // 3

STDOUT, STDERR = "stdout", "stderr"
_STREAMS = (STDOUT, STDERR)


class OutputCapture:
    """The output of one command; holds at most four MiB."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._sources = bytearray()  # for each byte, the index of its stream
        self._kept = [0, 0]
        self._dropped = [False, False]

    def add(self, stream: str, data: bytes) -> None:
        """Take a chunk of `stdout` or `stderr`; drop what exceeds the stream's cap."""
        source = _STREAMS.index(stream)
        room = STREAM_BYTES - self._kept[source]
        if len(data) > room:
            self._dropped[source] = True
            data = data[:room]
        self._kept[source] += len(data)
        self._data += data
        self._sources += bytes((source,)) * len(data)

    def stream(self, stream: str) -> bytes:
        """Return the kept output of one stream."""
        source = _STREAMS.index(stream)
        return b"".join(piece for of, piece in self._runs() if of == source)

    def joined(self) -> bytes:
        """Return the kept output of both streams, in the order of arrival."""
        return bytes(self._data)

    def text(self) -> str:
        """Return the output for the answer: both streams, each up to its share."""
        # A decoder for each stream: half a character of one may be followed by output of the other.
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS]
        left = _shares(*self._kept)
        cut = [self._dropped[source] or left[source] < self._kept[source] for source in (0, 1)]
        pieces = []
        for source, piece in self._runs():
            piece = piece[: left[source]]
            left[source] -= len(piece)
            # Half a character at a cut is dropped: the command did not write it so.
            last = not left[source] and not cut[source]
            pieces.append(decoders[source].decode(piece, last) if piece else "")
        return "".join(pieces)

    def _runs(self) -> Iterator[tuple[int, bytes]]:
        """Yield (stream index, bytes) for each run of output from one stream."""
        start, end = 0, len(self._data)
        while start < end:
            source = self._sources[start]
            stop = self._sources.find(1 - source, start)
            stop = end if stop < 0 else stop
            yield source, bytes(self._data[start:stop])
            start = stop


def decoded(data: bytes) -> str:
    """Return bytes of one stream as text, with U+FFFD for what is not UTF-8."""
    return data.decode("utf-8", "replace")


def _shares(stdout: int, stderr: int) -> list[int]:
    """Return how many bytes of each stream the answer holds."""
    of_stdout = min(stdout, _STDOUT_SHARE)
    of_stderr = min(stderr, TOTAL_BYTES - of_stdout)
    return [min(stdout, TOTAL_BYTES - of_stderr), of_stderr]
