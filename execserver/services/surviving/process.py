"""A process whose output, input and end are written down before anybody hears of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from execserver.core.process_state import ProcessState
from execserver.handover.records import PackedInput
from execserver.services.running import process_packing
from execserver.services.running.output_pump import CHUNK_BYTES, OutputPump
from execserver.services.running.process import Process
from execserver.services.running.stdin_queue import QUEUED_BYTES, StdinQueue
from execserver.survival import process_journal as journal_of
from execserver.survival.process_journal import Out, ProcessJournal
from execserver.survival.records import Snapshot
from execserver.wire.unsent import drop_sent

_CLEARED_BYTES: Final = 64 * 1024  # of input that was passed on; an empty file costs less memory


class SurvivingState(ProcessState):
    """A state whose last events are noted; its output is noted where it is read."""

    journal: ProcessJournal

    def record_exit(self, exit_code: int, *, signalled: bool) -> int:
        """See `ProcessState`."""
        seq = super().record_exit(exit_code, signalled=signalled)
        exited = journal_of.EXIT.pack(self.exit_code or 0, self.sandbox_denied)
        self.journal.note(journal_of.EXITED, exited + self.end_text)
        return seq

    def record_closed(self) -> int:
        """See `ProcessState`."""
        seq = super().record_closed()
        self.journal.note(journal_of.CLOSED)
        return seq


class SurvivingPump(OutputPump):
    """A pump that reads by way of the journal."""

    journal: ProcessJournal

    def stop(self) -> None:
        """See `OutputPump`."""
        if not self.ended:
            self.journal.note(journal_of.OUTPUT_GONE, self.stream.encode())
            self.journal.let_go(self.fd)
        super().stop()

    def _read(self, most: int = CHUNK_BYTES) -> bytes | None:
        data = self.journal.read(self.stream, self.fd, most)
        if data:
            self.journal.numbered(len(data), int(time.time() * 1000))
        return data


class SurvivingInput(StdinQueue):
    """A queue whose bytes are in a file, noted with their write ids, until the process has them."""

    goes_straight = False

    def __init__(self, fd: int, *, owned: bool, journal: ProcessJournal) -> None:
        super().__init__(fd, owned=owned)
        self._journal = journal

    def finish(self) -> None:
        """See `StdinQueue`."""
        self._journal.note(journal_of.INPUT_ENDED)
        super().finish()

    def close(self) -> None:
        """See `StdinQueue`."""
        if not self.gone:
            self._journal.note(journal_of.INPUT_GONE)
            if self._owned:
                self._journal.let_go(self._fd)
        super().close()

    def pack(self, out: Out) -> PackedInput:  # type: ignore[override]
        """Return the state of the queue; what is in it is in the file."""
        return PackedInput(-1 if self.gone else out.keep(self._fd), [], self._finishing)

    @property
    def _full(self) -> bool:
        # The file shrinks only when all of it was passed on.
        return super()._full or self._journal.input_end >= 2 * QUEUED_BYTES

    def _take(self, data: bytes, still_wanted: Callable[[], bool], write_id: str | None) -> bool:
        if not self.gone and still_wanted():
            self._journal.accept(data, write_id or "")
        return super()._take(data, still_wanted, write_id)

    def _pass_on(self) -> None:
        while self._queue:
            passed = os.sendfile(self._fd, self._journal.input_file, None, self._queued)
            if not passed:
                raise BrokenPipeError
            self._queued -= passed
            drop_sent(self._queue, passed)
        if self._journal.input_end > _CLEARED_BYTES:
            self._journal.clear_input()


class SurvivingProcess(Process):
    """A process with a journal, which is written from `begin` on."""

    def __init__(self, session_id: str, journal: ProcessJournal, *process: Any) -> None:
        self._session_id = session_id
        self._journal = journal
        super().__init__(*process)
        assert isinstance(self.state, SurvivingState)
        self.state.journal = journal

    def begin(self) -> None:
        """See `Process`; from now on it survives."""
        if self._begun:
            return
        fds = [pump.fd for pump in self._pumps if not pump.ended]
        if self.stdin is not None and not self.stdin.gone:
            fds.append(self.stdin.fd)
        self._journal.begin(self._session_id.encode(), fds, self._snapshot)
        super().begin()
        # Another server may have been killed between the end of its last output and its own.
        self._close_if_over()

    def signal(self, number: int) -> None:
        """See `Process`."""
        if not self.state.exited:
            self._journal.note(journal_of.SENT, journal_of.SIZE.pack(number))
        super().signal(number)

    def terminate(self) -> bool:
        """See `Process`."""
        self._note_termination(self.state.exited)
        return super().terminate()

    def end(self) -> None:
        """See `Process`."""
        self._note_termination(self.state.closed)
        super().end()

    def forgotten(self) -> None:
        """See `Process`; its journal is dropped, too."""
        super().forgotten()
        self._journal.forget()

    def _note_termination(self, is_late: bool) -> None:
        if not is_late:
            self._journal.note(journal_of.TERMINATED)

    def _exited(self, exit_code: int) -> None:
        child = self._child
        used = child.cpu_us, child.peak_bytes
        self._journal.note(
            journal_of.ENDED, journal_of.END.pack(child.wait_status or 0, child.survivors, *used)
        )
        super()._exited(exit_code)

    def _snapshot(self, out: Out) -> bytes:
        packed = process_packing.pack(self, out, self._session_id)  # type: ignore[arg-type]
        return msgspec.msgpack.encode(Snapshot(packed, self._journal.input_end))

    def _new_input(self, fd: int) -> StdinQueue:
        return SurvivingInput(fd, owned=not self.state.tty, journal=self._journal)

    def _new_pump(self, stream: str, fd: int) -> OutputPump:
        pump = SurvivingPump(stream, fd, self._output, self._attachment, self._output_ended, self._is_over)
        pump.journal = self._journal
        return pump
