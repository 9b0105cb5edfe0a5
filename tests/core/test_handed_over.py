"""The state of processes and sessions, packed and made anew: nothing about it is different then."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from execserver.core.file_handles import FileHandles, OpenFile
from execserver.core.output_log import OutputLog, TimedChunk
from execserver.core.process_state import ProcessState, SandboxNote
from execserver.core.sessions import Attachment, SessionTable
from execserver.core.spool_index import SpoolIndex
from execserver.core.watch_cursor import WatchCursor
from execserver.handover.records import PackedLog, PackedState
from execserver.protocol.files import FsOpenMode
from tests.support.beside import Beside

outputs = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=40)))


def carried(packed: PackedLog) -> PackedLog:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=PackedLog)


@given(outputs, outputs)
def test_a_log_goes_on_as_if_nothing_had_been(
    before: list[tuple[str, bytes]], behind: list[tuple[str, bytes]]
) -> None:
    dropped: list[list[TimedChunk]] = [[], []]
    same, other = OutputLog(100), OutputLog(100)
    for number, (stream, data) in enumerate(before):
        same.append(stream, data, number)
        if number % 3 == 0:
            same.take_seq()
    beside = Beside()
    other.restore(carried(same.pack(beside.put)), beside.view)
    for log, kept in zip((same, other), dropped, strict=True):
        log.on_drop = kept.append
        for number, (stream, data) in enumerate(behind):
            log.append(stream, data, number)
    assert same.pack(Beside().put) == other.pack(Beside().put)
    assert dropped[0] == dropped[1]
    assert (same.size, same.timed_after(0)) == (other.size, other.timed_after(0))


# What may be the first that somebody does with a log that was handed over.
FIRST: list[Callable[[OutputLog], object]] = [
    lambda log: log.page(2, None),
    lambda log: log.page(0, 5),
    lambda log: log.has_after(1),
    lambda log: log.timed_after(0),
    lambda log: log.bytes_until(2),
    lambda log: log.text_of("stdout", "stderr"),
    lambda log: log.append("stdout", b"more"),
    lambda log: log.take_seq(),
    lambda log: log.load(),
    lambda log: (log.size, log.next_seq, log.oldest_seq, log.lost_bytes),
]


@given(outputs, st.sampled_from(FIRST))
def test_a_log_is_whole_whoever_asks_first(
    before: list[tuple[str, bytes]], first: Callable[[OutputLog], object]
) -> None:
    """Its chunks are made then, and what they came in is let go."""
    same, other = OutputLog(100), OutputLog(100)
    for number, (stream, data) in enumerate(before):
        same.append(stream, data, number)
    beside = Beside()
    packed = carried(same.pack(beside.put))
    came_in = bytearray(beside.view)
    other.restore(packed, memoryview(came_in))
    assert first(other) == first(same)
    other.load()
    came_in.extend(b"x")  # nobody has a view of it any more
    assert (other.timed_after(0), other.page(0, None)) == (same.timed_after(0), same.page(0, None))


def test_a_state_is_the_same_in_each_phase() -> None:
    state = ProcessState(tty=True, retained_bytes=100, sandbox=SandboxNote(True, "why"))
    seen = []
    for step in range(4):
        if step == 1:
            state.started()
            state.record_output("pty", b"out", 5)
            state.writes.add("a")
            state.writes.add("b")
        elif step == 2:
            state.record_exit(137, signalled=True)
        elif step == 3:
            state.record_closed()
        beside = Beside()
        packed = msgspec.msgpack.decode(msgspec.msgpack.encode(state.pack(beside.put)), type=PackedState)
        other = ProcessState.unpacked(packed, 100, beside.view)
        assert other.pack(Beside().put) == state.pack(Beside().put)
        seen.append(
            (other.phase.name, other.exited, other.closed, other.sandbox_refusal, "a" in other.writes)
        )
    assert seen == [
        ("STARTING", False, False, "", False),
        ("RUNNING", False, False, "", True),
        ("EXITED", True, False, "why", True),
        ("CLOSED", True, True, "why", True),
    ]


def test_a_spool_index_writes_on_at_the_same_place() -> None:
    same, other = SpoolIndex(1000), SpoolIndex(1000)
    log = OutputLog(10_000)
    for number in range(40):
        log.append("stdout", bytes(90), number)
    chunks = log.timed_after(0)
    for at in range(0, 20, 2):
        same.add(same.place(chunks[at : at + 2])[0])
    other.restore(*same.pack())
    for index in (same, other):
        for at in range(20, 40, 2):
            index.add(index.place(chunks[at : at + 2])[0])
    assert same.pack() == other.pack()
    assert (same.held_bytes, same.oldest_seq) == (other.held_bytes, other.oldest_seq)


def test_a_follower_goes_on_behind_what_it_has_taken() -> None:
    state = ProcessState(tty=False, retained_bytes=10)
    state.started()
    cursor = WatchCursor(state, 0)
    state.record_output("stdout", b"12345")
    cursor.take(100)
    other = WatchCursor(state, None)
    other.restore(*cursor.pack())
    state.record_output("stdout", b"123456")
    state.record_output("stdout", b"1234567")
    assert other.take(100) == cursor.take(100)


def test_detached_sessions_end_in_their_order_and_kept_ones_by_their_own_times() -> None:
    names = iter("abc")
    table = SessionTable(10.0, 5, lambda: next(names))
    for record in [table.create() for _ in range(3)]:
        record.keep_s = 100.0 if record.session_id == "b" else None
        table.detach(record, 1.0 if record.session_id == "c" else 3.0)
    records = [table.resume(name) for name in "abc"]
    other = SessionTable(10.0, 5, lambda: "d")
    for record, expires_at in zip(records, (13.0, 103.0, 11.0), strict=True):
        record.attachment, record.expires_at = Attachment.DETACHED, expires_at
    for record in sorted(records, key=lambda each: each.expires_at):
        other.restore(record)
    assert [record.session_id for record in other.expire(12.0)] == ["c"]
    assert [record.session_id for record in other.expire(14.0)] == ["a"]
    assert other.next_kept_end() == 103.0
    assert other.resume("b").attachment is Attachment.ATTACHED


def test_open_files_keep_their_ids_and_modes() -> None:
    closed: list[int] = []
    handles, other = FileHandles(closed.append), FileHandles(os.close)
    handles.add("r", OpenFile(70, FsOpenMode.READ, True))
    handles.add("w", OpenFile(71, FsOpenMode.REPLACE, False))
    assert handles.pack() == [("r", 70, "read", True), ("w", 71, "replace", False)]
    other.restore(handles.pack())
    assert (other.for_reading("r", 5).fd, other.for_writing("w", 0, 5).local) == (70, False)
    assert closed == []
