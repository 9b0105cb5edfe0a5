"""What of a process is recorded while it runs, and what is not: input that its terminal hides."""

from __future__ import annotations

import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from execserver.audit.recording import EXIT, INPUT, OUTPUT, RESIZE, Recording

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedRecording


class ProcessRecorder:
    """The recording of one process.  `terminal_fd` is None without a terminal, and once that is gone."""

    def __init__(self, recording: Recording, terminal_fd: int | None) -> None:
        self.terminal_fd = terminal_fd
        self._recording = recording
        self._tty = terminal_fd is not None

    def pack(self, out: Outgoing, with_input: bool) -> PackedRecording | None:
        """Return what `taken_over` takes; None once the recording is closed."""
        from execserver.handover.records import PackedRecording

        facts = self._recording.facts
        if facts is None:
            return None
        fd, path, at_us, size, is_cut = facts
        return PackedRecording(out.keep(fd), path, at_us, size, is_cut, with_input)

    def output(self, data: bytes) -> None:
        """Record what the process wrote."""
        self._add(OUTPUT, data)

    def resized(self, rows: int, cols: int) -> None:
        """Record the new size of its terminal."""
        self._add(RESIZE, b"%dx%d" % (cols, rows))

    def closed(self, exit_code: int) -> None:
        """Record the end, behind all output, and close the file."""
        self._add(EXIT, b"%d" % exit_code)
        self._recording.close()

    def before_input(self) -> Callable[[bytes], None]:
        """Look whether input is hidden before it is written, since who reads it may show it right after.

        Return what records the bytes that were written.
        """
        hidden = self._hides_input

        def written(data: bytes) -> None:
            if not hidden and not self._hides_input:
                self._add(INPUT, data)

        return written

    @property
    def _hides_input(self) -> bool:
        """True while a program reads a line without echo, as a password; line editors read keys instead."""
        if self.terminal_fd is None:
            return self._tty  # it is gone, and nobody can tell
        flags = termios.tcgetattr(self.terminal_fd)[3]
        return bool(flags & termios.ICANON and not flags & termios.ECHO)

    def _add(self, code: bytes, data: bytes) -> None:
        self._recording.add(code, data, time.time_ns() // 1000)


def taken_over(packed: PackedRecording, incoming: Incoming) -> tuple[Recording, bool]:
    """Return the recording that was packed, and whether input goes into it."""
    fd = incoming.take(packed.fd)
    facts = (packed.path, packed.at_us, packed.size, packed.is_cut)
    return Recording.taken_over(fd, *facts), packed.with_input
