from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest

from execserver.core.output_log import Chunk, OutputLog, TimedChunk
from execserver.core.spool_index import SEGMENT_CHUNKS
from execserver.services.running.process_log import first_seq, page
from execserver.services.running.spool import PENDING_BYTES, PENDING_CHUNKS, Spool, SpoolBudget, spooled
from tests.support.lives import assert_freed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")

RING, LIMIT = 100_000, 1 << 20


class Logged:
    """As much of a process as its log needs."""

    def __init__(self, limit: int = LIMIT, budget: SpoolBudget | None = None) -> None:
        self.log = OutputLog(RING)
        self.state = SimpleNamespace(log=self.log)
        self.budget = budget or SpoolBudget(1 << 30)
        self.spool = spooled(self.log, limit, self.budget)

    def write(self, data: bytes, at_ms: int = 0, stream: str = "stdout") -> None:
        self.log.append(stream, data, at_ms)
        self.spool.wait_for_room()

    def settle(self) -> None:
        wait_until(lambda: not self.spool._writing, 20.0, pause=gevent.sleep)

    def everything(self, max_bytes: int = 300_000) -> list[tuple[int, str, bytes]]:
        found: list[tuple[int, str, bytes]] = []
        after = 0
        while chunks := page(self, after, max_bytes).chunks:  # type: ignore[arg-type]
            found += [(one.seq, one.stream, one.data) for one, _ in chunks]
            after = chunks[-1].chunk.seq
        return found

    def lost(self) -> int:
        return page(self, 0, 1).lost_bytes  # type: ignore[arg-type]

    def begin(self, tail: int | None = None, since: int | None = None) -> int:
        return first_seq(self, 0, tail, since)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Logged]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    all_made: list[Logged] = []

    def make(*arguments: object) -> Logged:
        all_made.append(Logged(*arguments))  # type: ignore[arg-type]
        return all_made[-1]

    yield make
    for each in all_made:
        each.spool.close()


def test_all_that_was_written_is_there_and_no_file_is_seen(
    made: Callable[..., Logged], tmp_path: Path
) -> None:
    one = made()
    wanted = []
    for number in range(1, 40):
        data = os.urandom(20_000)
        one.write(data, number, "stderr" if number % 2 else "stdout")
        wanted.append((number, "stderr" if number % 2 else "stdout", data))
    one.settle()
    assert one.everything() == wanted
    assert one.lost() == 0
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(one.spool._fd).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(5))
def test_around_and_around_what_is_there_is_right_and_the_rest_is_counted(
    made: Callable[..., Logged], seed: int
) -> None:
    chance = random.Random(seed)
    one = made()
    written: list[bytes] = []
    for _ in range(400):
        written.append(chance.randbytes(chance.choice((1, 100, 9000, 65536))))
        one.write(written[-1])
    one.settle()
    found = one.everything(chance.choice((1, 70_000, 10**9)))
    assert [(seq, data) for seq, _, data in found] == [
        (seq, written[seq - 1]) for seq in range(found[0][0], len(written) + 1)
    ]
    assert one.lost() == sum(map(len, written[: found[0][0] - 1]))
    assert sum(len(data) for _, _, data in found) > LIMIT // 2


def test_a_reader_begins_at_the_end_or_at_a_time(made: Callable[..., Logged]) -> None:
    one = made()
    for number in range(1, 51):
        one.write(b"x" * 10_000, 1000 * number)
    one.settle()
    assert one.begin(tail=10_000) == 49
    assert one.begin(tail=0) == 50
    assert one.begin(since=48_500) == 48
    assert one.begin(since=10**9) == 50
    assert one.begin(tail=10**9) == 0
    assert 0 < one.begin(tail=300_000) <= 20
    assert 0 < one.begin(since=30_000) <= 29


def test_a_full_disk_is_said(made: Callable[..., Logged], monkeypatch: pytest.MonkeyPatch) -> None:
    one = made()
    for _ in range(30):
        one.write(b"a" * 10_000)
    one.settle()
    before = one.spool.held_bytes
    assert before > 0

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(100):
        one.write(b"b" * 10_000)
    one.settle()
    assert one.spool.error == "No space left on device (os error 28)"
    found = one.everything()
    assert one.lost() == 1_300_000 - sum(len(data) for _, _, data in found) > 0


def test_the_spools_of_a_server_have_a_limit_together(made: Callable[..., Logged]) -> None:
    budget = SpoolBudget(300_000)
    one, other = made(LIMIT, budget), made(LIMIT, budget)
    for each in (one, other):
        for _ in range(60):
            each.write(b"x" * 10_000)
        each.settle()
    assert other.spool.error == "the spools of the server are full"
    one.spool.close()
    other.spool.close()
    assert budget.left == 300_000


def test_a_slow_disk_holds_back_the_pumps_and_not_the_memory(
    made: Callable[..., Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made()
    for _ in range(200):
        one.log.append("stdout", b"x" * 10_000)  # nobody runs meanwhile
    assert one.spool._pending_bytes > PENDING_BYTES
    one.spool.wait_for_room()
    assert one.spool._pending_bytes <= PENDING_BYTES
    one.settle()


def test_small_chunks_are_written_before_they_take_much_memory(made: Callable[..., Logged]) -> None:
    logged = made()
    for number in range(3 * SEGMENT_CHUNKS):
        logged.spool.add(TimedChunk(Chunk(number + 1, "stdout", b"%d" % (number % 10)), number))
    logged.settle()
    assert len(logged.spool._pending) < SEGMENT_CHUNKS
    found = logged.spool.next_chunks(SEGMENT_CHUNKS)
    assert [(found[0].chunk.seq, found[0].at_ms), len(found)] == [
        (SEGMENT_CHUNKS + 1, SEGMENT_CHUNKS),
        SEGMENT_CHUNKS,
    ]


def test_many_small_chunks_that_a_slow_disk_has_not_taken_hold_back_the_pumps(
    made: Callable[..., Logged],
) -> None:
    logged = made()
    for number in range(PENDING_CHUNKS):
        logged.spool.add(TimedChunk(Chunk(number + 1, "stdout", b"x"), 0))
    room = [logged.spool.has_room]
    logged.spool.add(TimedChunk(Chunk(PENDING_CHUNKS + 1, "stdout", b"x"), 0))
    room.append(logged.spool.has_room)
    logged.settle()
    assert [*room, logged.spool.has_room] == [True, False, True]


def test_a_spool_that_is_closed_while_it_writes_gives_its_file_back(made: Callable[..., Logged]) -> None:
    one = made()
    for _ in range(40):
        one.log.append("stdout", b"x" * 10_000)
    gevent.sleep(0)  # a thread writes now
    one.spool.close()
    wait_until(lambda: one.spool._fd < 0 and not one.spool._in_threads, 20.0, pause=gevent.sleep)
    one.settle()
    assert one.budget.left == 1 << 30


def test_nothing_is_left_of_a_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def life(_: int) -> None:
        one = Logged()
        for _ in range(30):
            one.write(b"x" * 10_000)
        one.settle()
        one.everything()
        one.log.on_drop = None
        one.spool.close()

    assert_freed(life, 10)
    assert isinstance(Logged().spool, Spool)
