"""The journal of a process, read at any moment, says what a process of the server would have said."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import tty
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from execserver.core import output_log
from execserver.core.output_log import OutputLog
from execserver.core.process_state import ProcessState
from execserver.handover.records import PackedInput, PackedProcess
from execserver.survival import course
from execserver.survival import process_journal as journal_of
from execserver.survival.course import Course
from execserver.survival.ledger import PROCESS
from execserver.survival.process_journal import Out, ProcessJournal
from execserver.survival.records import Snapshot

RETAINED = 300_000


class HeldLedger:
    """What a ledger has said last of the one process."""

    places: tuple[int, ...] = ()

    def put(self, name: bytes, value: bytes) -> None:
        assert name.startswith(PROCESS)
        assert value[journal_of.PLACES.size :] == b"session"
        self.places = journal_of.PLACES.unpack_from(value)

    def drop(self, name: bytes) -> None:
        self.places = ()


class Held:
    """A `Keeping` whose keeper is here: copies of descriptors by key."""

    def __init__(self) -> None:
        self.ledger = HeldLedger()
        self.table: dict[int, int] = {}
        self._next = 1

    def hold(self, fds: Sequence[int]) -> list[int]:
        keys = list(range(self._next, self._next + len(fds)))
        self._next += len(fds)
        self.table.update(zip(keys, map(os.dup, fds), strict=True))
        return keys

    def drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            os.close(self.table.pop(key))


class Scene:
    """One process with its journal, and the log that its server keeps."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self.held = Held()
        self.journal = ProcessJournal(self.held, is_terminal=is_terminal)  # type: ignore[arg-type]
        self.state = ProcessState(tty=is_terminal, retained_bytes=RETAINED)
        self.state.started()
        self.is_terminal = is_terminal
        if is_terminal:
            ours, theirs = pty.openpty()
            tty.setraw(theirs)
            self.outputs = {"pty": ours}
            self.writers = {"pty": theirs}
            self.stdin = ours
            os.set_blocking(ours, False)
        else:
            pipes = {name: os.pipe() for name in ("stdout", "stderr")}
            self.outputs = {name: reader for name, (reader, _) in pipes.items()}
            self.writers = {name: writer for name, (_, writer) in pipes.items()}
            self.reader, self.stdin = os.pipe()
            os.set_blocking(self.stdin, False)
        self.journal.begin(b"session", [*self.outputs.values(), self.stdin], self.snapshot)

    def snapshot(self, out: Out) -> bytes:
        process = PackedProcess(
            *("p", None, ["sh"], 11, 1.5, 22, 33, None, False, False, (0, 0), [], None, False, "", None),
            *("session", PackedInput(out.keep(self.stdin), [], finishing=False)),
            [(name, out.keep(fd)) for name, fd in self.outputs.items()],
            None,
            None,
            None,
            self.state.pack(out.put),
        )
        return msgspec.msgpack.encode(Snapshot(process, self.journal.input_end))

    def read(self, stream: str, most: int = 65_536) -> bytes | None:
        """Read as a pump does, and number what comes."""
        data = self.journal.read(stream, self.outputs[stream], most)
        if data:
            self.journal.numbered(len(data), 5)
            self.state.record_output(stream, data, 5)
        return data

    def course(self) -> Course:
        records, data, *_ = self.held.ledger.places
        return Course(self.held.table[records], self.held.table[data], RETAINED)

    def recovered(self) -> ProcessState:
        """Return the state that a server behind this one would have now."""
        course = self.course()
        packed = course.packed(0, self.held.table, [])
        return ProcessState.unpacked(packed.state, RETAINED, memoryview(course.output))

    def close(self) -> None:
        self.journal.forget()
        assert self.held.ledger.places == ()
        rest = [*self.held.table.values(), *self.outputs.values(), *self.writers.values()]
        rest += [] if self.is_terminal else [self.reader, self.stdin]
        for fd in rest:
            os.close(fd)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def seen(log: OutputLog) -> tuple[object, ...]:
    return log.page(0, None), log.next_seq, log.oldest_seq, log.lost_bytes


def test_at_each_moment_the_journal_has_the_log_of_the_process(scene: Scene) -> None:
    chance = random.Random(1)
    for _ in range(300):
        stream = chance.choice(("stdout", "stderr"))
        os.write(scene.writers[stream], os.urandom(chance.choice((1, 20, 4000, 60_000))))
        scene.read(stream, chance.choice((100, 65_536)))
        assert seen(scene.recovered().log) == seen(scene.state.log)
        while scene.read(stream):
            if os.get_blocking(scene.writers[stream]) and not readable(scene.outputs[stream]):
                break
    # All files that the journal has been written to are gone but two, of the size of what is retained.
    data = scene.held.ledger.places[1]
    assert os.fstat(scene.held.table[data]).st_size < RETAINED + 2 * 1024 * 1024
    assert len(scene.held.table) == 6


def test_of_many_small_chunks_as_few_come_back_as_the_server_had_retained(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (output_log, course):
        monkeypatch.setattr(module, "MOST_CHUNKS", 5)
    for number in range(12):
        os.write(scene.writers["stdout"], b"%d" % number)
        scene.read("stdout")
    log = scene.state.log
    assert (log.text_of("stdout"), log.oldest_seq, log.lost_bytes) == (b"7891011", 8, 7)
    assert seen(scene.recovered().log) == seen(log)


def readable(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, 0x541B, bytes(4)), "little")  # FIONREAD


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_was_read_and_not_numbered_is_numbered_next(is_terminal: bool) -> None:
    scene = Scene(is_terminal=is_terminal)
    stream = "pty" if is_terminal else "stdout"
    os.write(scene.writers[stream], b"before")
    scene.read(stream)
    os.write(scene.writers[stream], b"behind")
    assert scene.journal.read(stream, scene.outputs[stream], 4096) == b"behind"
    # Killed here.
    found = scene.recovered().log.page(0, None).chunks
    assert [(chunk.seq, chunk.stream, chunk.data) for chunk in found] == [
        *((1, stream, b"before"), (2, stream, b"behind"))
    ]
    scene.close()


def test_input_is_in_one_place_or_the_other(scene: Scene) -> None:
    for number in range(3):
        scene.journal.accept(b"line %d\n" % number, f"w{number}")
    file = scene.held.table[scene.held.ledger.places[2]]
    assert os.sendfile(scene.stdin, scene.journal.input_file, None, 10) == 10
    course = scene.course()
    assert course.input_end == 21
    assert os.pread(file, 100, os.lseek(file, 0, os.SEEK_CUR)) == b"ne 1\nline 2\n"[1:]
    assert list(scene.recovered().writes) == ["w0", "w1", "w2"]


def test_input_that_was_not_noted_was_not_accepted(scene: Scene) -> None:
    scene.journal.accept(b"noted", "w")
    os.pwrite(scene.journal.input_file, b"behind", 5)  # and killed before the note
    assert scene.course().input_end == 5


def test_the_records_of_a_process_that_only_reads_stay_few(scene: Scene) -> None:
    for number in range(60_000):
        scene.journal.accept(b"x", f"w{number}")
        scene.state.writes.add(f"w{number}")
        if number % 1000 == 999:
            os.sendfile(scene.stdin, scene.journal.input_file, None, 1000)
            os.read(scene.reader, 1000)
            scene.journal.clear_input()
    records = scene.held.table[scene.held.ledger.places[0]]
    assert os.fstat(records).st_size < 1_200_000
    assert list(scene.recovered().writes) == list(scene.state.writes)


def test_the_file_of_input_is_emptied_when_all_was_passed_on(scene: Scene) -> None:
    scene.journal.accept(b"x" * 100, "w")
    os.sendfile(scene.stdin, scene.journal.input_file, None, 100)
    scene.journal.clear_input()
    assert (scene.course().input_end, os.fstat(scene.journal.input_file).st_size) == (0, 0)
    assert os.lseek(scene.journal.input_file, 0, os.SEEK_CUR) == 0


def test_the_last_events_are_read(scene: Scene) -> None:
    note = scene.journal.note
    note(journal_of.SENT, journal_of.SIZE.pack(15))
    note(journal_of.TERMINATED)
    note(journal_of.INPUT_ENDED)
    note(journal_of.ENDED, journal_of.END.pack(9, True, 1234, 5678))
    note(journal_of.EXITED, journal_of.EXIT.pack(137, True) + b"text")
    for name in list(scene.outputs):
        note(journal_of.OUTPUT_GONE, name.encode())
    note(journal_of.INPUT_GONE)
    note(journal_of.CLOSED)
    packed = scene.course().packed(0, scene.held.table, [])
    assert (packed.sent, packed.wait_status, packed.survivors, packed.used) == ([15], 9, True, (1234, 5678))
    assert (packed.outputs, packed.input_ended) == ([], True)
    assert (packed.zygote, packed.child_id) == (0, 0)  # it takes no child of a zygote with the same pid
    assert packed.input == PackedInput(-1, [], finishing=False)
    state = packed.state
    assert (state.phase, state.exit_code, state.exit_seq, state.log.next_seq) == ("CLOSED", 137, 1, 3)
    assert (state.terminated, state.sandbox_denied, state.end_text) == (True, True, b"text")


def test_a_terminal_that_is_gone_takes_no_input() -> None:
    scene = Scene(is_terminal=True)
    scene.journal.note(journal_of.OUTPUT_GONE, b"pty")
    scene.journal.let_go(scene.stdin)
    packed = scene.course().packed(0, scene.held.table, [])
    assert (packed.outputs, packed.input) == ([], PackedInput(-1, [], finishing=False))
    scene.close()


def test_a_journal_that_is_none_is_refused(scene: Scene) -> None:
    with pytest.raises(ValueError, match="without a snapshot"):
        Course(scene.journal.input_file, scene.journal.input_file, RETAINED)
