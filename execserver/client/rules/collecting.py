"""What a process printed, collected up to a bound, and its exit code.  No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from execserver.client.errors import OutputGap, OutputTooLarge
from execserver.client.rules.event_log import Output

MAX_COLLECTED: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 4096


class CompletedProcess(NamedTuple):
    """The output of a process and its exit code.  The output of a terminal is in `stdout`."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    gaps: tuple[OutputGap, ...] = ()


class _Pieces:
    """Bytes of one stream: large pieces are kept as they came and copied once, small ones joined at once."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: bytes) -> None:
        if len(data) >= _PIECE_BYTES:
            self._pieces.append(data)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def joined(self) -> bytes:
        return b"".join(self._pieces)


class Collector:
    """Output by stream, up to `max_output` bytes."""

    def __init__(self, max_output: int) -> None:
        self.gaps: list[OutputGap] = []
        self._stdout = _Pieces()
        self._stderr = _Pieces()
        self._size = 0
        self._max_output = max_output

    def add(self, output: Output) -> None:
        """Keep some output.  Raises `OutputTooLarge`."""
        (self._stderr if output.stream == "stderr" else self._stdout).add(output.data)
        self._size += len(output.data)
        if self._size > self._max_output:
            raise OutputTooLarge(f"the process printed more than {self._max_output} bytes")

    def completed(self, exit_code: int) -> CompletedProcess:
        """Return what was collected."""
        return CompletedProcess(exit_code, self._stdout.joined(), self._stderr.joined(), tuple(self.gaps))
