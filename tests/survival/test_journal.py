"""What is read of a journal is what was written whole, wherever a kill has cut it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.survival.journal import Journal, memory_file, records, whole
from execserver.survival.ledger import Ledger, read

RECORDS = [(1, b"first"), (2, b""), (250, bytes(range(256))), (3, b"last")]


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal()
    for kind, payload in RECORDS:
        made.append(kind, payload)
    yield made
    made.close()


def test_records_are_read_in_their_order(journal: Journal) -> None:
    assert list(records(journal.fd)) == RECORDS
    assert journal.size == os.fstat(journal.fd).st_size


def test_of_a_journal_that_is_cut_anywhere_whole_records_are_read(journal: Journal) -> None:
    data = whole(journal.fd)
    ends = [0]
    for number in range(1, len(RECORDS) + 1):
        other = Journal()
        for kind, payload in RECORDS[:number]:
            other.append(kind, payload)
        ends.append(other.size)
        other.close()
    for size in range(len(data) + 1):
        os.ftruncate(journal.fd, size)
        whole_ones = max(number for number, end in enumerate(ends) if end <= size)
        assert list(records(journal.fd)) == RECORDS[:whole_ones]
        os.pwrite(journal.fd, data, 0)


def test_a_record_with_another_byte_ends_what_is_read(journal: Journal) -> None:
    data = whole(journal.fd)
    for place in range(len(data)):
        os.pwrite(journal.fd, bytes([data[place] ^ 0x40]), place)
        found = list(records(journal.fd))
        assert len(found) < len(RECORDS)
        assert found == RECORDS[: len(found)]
        os.pwrite(journal.fd, data[place : place + 1], place)


STEPS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c d"]), st.one_of(st.none(), st.binary(max_size=9)))
)


@given(STEPS, st.integers(0, 40))
def test_a_ledger_has_what_was_put_last_and_not_dropped(
    steps: list[tuple[bytes, bytes | None]], published: int
) -> None:
    shown: list[int] = []

    def hold(fd: int) -> None:
        shown.append(os.dup(fd))

    ledger = Ledger(hold)
    expected: dict[bytes, bytes] = {}
    for number, (name, value) in enumerate(steps):
        if number == published:
            ledger.publish()
        if value is None:
            ledger.drop(name)
            expected.pop(name, None)
        else:
            ledger.put(name, value)
            expected[name] = value
        if shown:
            assert read(shown[-1]) == expected
    ledger.publish()
    assert read(shown[-1]) == expected
    assert ledger._journal is not None
    ledger._journal.close()
    for fd in shown:
        os.close(fd)


def test_a_ledger_that_is_written_to_for_ever_stays_small() -> None:
    fds = [memory_file()]

    def hold(fd: int) -> None:
        os.close(fds[0])
        fds[0] = os.dup(fd)

    ledger = Ledger(hold)
    ledger.put(b"stays", b"here")
    ledger.publish()
    for number in range(20_000):
        ledger.put(b"changes", b"%d" % number)
    assert os.fstat(fds[0]).st_size < 80_000
    assert read(fds[0]) == {b"stays": b"here", b"changes": b"19999"}
    assert ledger._journal is not None
    ledger._journal.close()
    os.close(fds[0])


def test_a_ledger_without_a_free_descriptor_goes_on_and_is_written_anew_later() -> None:
    fds: list[int] = []
    ledger = Ledger(lambda fd: fds.append(os.dup(fd)))
    ledger.publish()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        for number in range(10_000):
            ledger.put(b"changes", b"%d" % number)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(fds) == 1
    assert read(fds[0]) == {b"changes": b"9999"}
    for number in range(20_000):
        ledger.put(b"changes", b"%d" % number)
    assert len(fds) > 1
    assert read(fds[-1]) == {b"changes": b"19999"}
    assert ledger._journal is not None
    ledger._journal.close()
    for fd in fds:
        os.close(fd)
