"""What has happened to one process, read from its journal: its snapshot, and each event since then."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from execserver.core.output_log import MOST_CHUNKS
from execserver.handover.records import PackedInput, PackedLog, PackedProcess, PackedState
from execserver.survival import process_journal as journal_of
from execserver.survival.journal import records, whole
from execserver.survival.records import Snapshot

_EXITED: Final = "EXITED"
CLOSED: Final = "CLOSED"  # both are phases of `core.process_state.ProcessPhase`


class Course:
    """One process; `output` is what of its output is retained, `input_end` how much input was accepted."""

    def __init__(self, records_fd: int, data_fd: int, retained_bytes: int) -> None:
        """Read all of it.  Raises ValueError, msgspec.MsgspecError for what is no journal."""
        noted = records(records_fd)
        kind, payload = next(noted, (0, b""))
        if kind != journal_of.SNAPSHOT:
            raise ValueError("a journal without a snapshot")
        snapshot = msgspec.msgpack.decode(payload, type=Snapshot)
        self._begin(snapshot.process)
        self.input_end = snapshot.input_end
        for kind, payload in noted:
            _EVENTS[kind](self, payload)
        self.output = whole(data_fd)
        # What was read at last may not have been numbered.
        if rest := len(self.output) - sum(self._sizes):
            self._chunk(rest, int(time.time() * 1000))
        self._trim(retained_bytes)

    @property
    def ended_child(self) -> tuple[int, int] | None:
        """Zygote and child id of a process that was reaped and whose exit has not been told; else None."""
        if self._wait_status is None or self._exit_code is not None:
            return None
        return self._process.zygote, self._process.child_id

    def packed(self, at: int, fds: Mapping[int, int], queued: list[bytes]) -> PackedProcess:
        """Return the process, whose output is `at` this place; `fds` are by key, `queued` is unread input."""
        packed, names = self._process, list(dict.fromkeys(self._streams))
        log = PackedLog(
            at=at,
            seqs=_column(self._seqs),
            sizes=_column(self._sizes),
            times=_column(self._times),
            streams=bytes([names.index(each) for each in self._streams]),
            names=names,
            next_seq=self._next_seq,
            oldest_seq=self._oldest_seq,
            lost_bytes=self._lost_bytes,
        )
        state = msgspec.structs.replace(
            packed.state,
            phase=self._phase,
            exit_code=self._exit_code,
            exit_seq=self._exit_seq,
            terminated=self._terminated,
            sandbox_denied=self._sandbox_denied,
            end_text=self._end_text,
            write_ids=self._write_ids,
            log=log,
        )
        # One that has ended names no child: another zygote may have got the pid of its own by now.
        has_ended = self._wait_status is not None or self._exit_code is not None
        return msgspec.structs.replace(
            packed,
            zygote=0 if has_ended else packed.zygote,
            child_id=0 if has_ended else packed.child_id,
            wait_status=self._wait_status,
            survivors=self._survivors,
            used=self._used,
            sent=sorted(self._sent),
            input_ended=self._input_ended,
            input=self._input(fds, queued),
            outputs=[(stream, fds[key]) for stream, key in self._outputs.items()],
            state=state,
        )

    def _input(self, fds: Mapping[int, int], queued: list[bytes]) -> PackedInput | None:
        if self._process.input is None:
            return None
        if self._input_key < 0:
            return PackedInput(-1, [], finishing=False)
        return PackedInput(fds[self._input_key], queued, finishing=self._is_finishing)

    def _begin(self, process: PackedProcess) -> None:
        self._process = process
        self._wait_status, self._survivors, self._used = process.wait_status, process.survivors, process.used
        self._sent = set(process.sent)
        self._outputs = dict(process.outputs)
        self._input_ended = process.input_ended
        self._input_key = -1 if process.input is None else process.input.fd
        self._is_finishing = process.input is not None and process.input.finishing
        self._begin_state(process.state)

    def _begin_state(self, state: PackedState) -> None:
        self._phase, self._terminated = state.phase, state.terminated
        self._exit_code, self._exit_seq = state.exit_code, state.exit_seq
        self._sandbox_denied, self._end_text = state.sandbox_denied, state.end_text
        self._write_ids = list(state.write_ids)
        log = state.log
        self._seqs, self._sizes, self._times = map(_numbers, (log.seqs, log.sizes, log.times))
        self._streams = [log.names[each] for each in log.streams]
        self._next_seq, self._oldest_seq, self._lost_bytes = log.next_seq, log.oldest_seq, log.lost_bytes
        self._stream = ""

    def _take_stream(self, payload: bytes) -> None:
        self._stream = payload.decode()

    def _take_output(self, payload: bytes) -> None:
        self._chunk(*journal_of.CHUNK.unpack(payload))

    def _chunk(self, size: int, at_ms: int) -> None:
        self._seqs.append(self._take_seq())
        self._sizes.append(size)
        self._times.append(at_ms)
        self._streams.append(self._stream)

    def _take_seq(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def _take_input(self, payload: bytes) -> None:
        (size,) = journal_of.SIZE.unpack_from(payload)
        self.input_end += size
        if write_id := payload[journal_of.SIZE.size :].decode():
            self._write_ids.append(write_id)

    def _take_input_cleared(self, payload: bytes) -> None:
        self.input_end = 0

    def _take_input_ended(self, payload: bytes) -> None:
        self._input_ended = self._is_finishing = True

    def _take_input_gone(self, payload: bytes) -> None:
        self._input_key = -1

    def _take_output_gone(self, payload: bytes) -> None:
        self._outputs.pop(stream := payload.decode(), None)
        if stream == "pty":  # one descriptor for both directions
            self._input_key = -1

    def _take_terminated(self, payload: bytes) -> None:
        self._terminated = True

    def _take_sent(self, payload: bytes) -> None:
        self._sent.add(*journal_of.SIZE.unpack(payload))

    def _take_ended(self, payload: bytes) -> None:
        self._wait_status, survivors, *used = journal_of.END.unpack(payload)
        self._survivors, self._used = bool(survivors), (used[0], used[1])

    def _take_exited(self, payload: bytes) -> None:
        self._exit_code, denied = journal_of.EXIT.unpack_from(payload)
        self._sandbox_denied, self._end_text = bool(denied), payload[journal_of.EXIT.size :]
        self._exit_seq, self._phase = self._take_seq(), _EXITED

    def _take_closed(self, payload: bytes) -> None:
        self._take_seq()
        self._phase = CLOSED

    def _trim(self, retained_bytes: int) -> None:
        """Drop the oldest chunks as `core.output_log` has done: what it has dropped does not come back."""
        dropped = size = 0
        left = sum(self._sizes)
        while left > retained_bytes or len(self._sizes) - dropped > MOST_CHUNKS:
            size += self._sizes[dropped]
            left -= self._sizes[dropped]
            self._oldest_seq = self._seqs[dropped] + 1
            dropped += 1
        self._lost_bytes += size
        self.output = self.output[size:]
        for column in (self._seqs, self._sizes, self._times):
            del column[:dropped]
        del self._streams[:dropped]


_EVENTS = {
    journal_of.STREAM: Course._take_stream,
    journal_of.OUTPUT: Course._take_output,
    journal_of.INPUT: Course._take_input,
    journal_of.INPUT_CLEARED: Course._take_input_cleared,
    journal_of.INPUT_ENDED: Course._take_input_ended,
    journal_of.INPUT_GONE: Course._take_input_gone,
    journal_of.OUTPUT_GONE: Course._take_output_gone,
    journal_of.TERMINATED: Course._take_terminated,
    journal_of.SENT: Course._take_sent,
    journal_of.ENDED: Course._take_ended,
    journal_of.EXITED: Course._take_exited,
    journal_of.CLOSED: Course._take_closed,
}


def _column(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _numbers(column: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(column) // 8}Q", column))
