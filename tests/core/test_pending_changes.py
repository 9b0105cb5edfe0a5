"""What waits to be told of a watched tree: in order, merged where one change tells all, and bounded."""

from __future__ import annotations

from execserver.core.pending_changes import (
    ATTRIBUTES,
    CREATED,
    MAX_BYTES,
    MAX_CHANGES,
    MAX_ERRORS,
    MODIFIED,
    REMOVED,
    RENAMED,
    Change,
    PendingChanges,
)
from execserver.protocol.file_watches import FsChangeKind

ALL = (MAX_CHANGES, MAX_BYTES)


def told(*changes: tuple[str, bytes] | tuple[str, bytes, bytes], is_directory: bool = False) -> list[str]:
    """Return in short what is told of changes: kinds and paths."""
    pending = PendingChanges(lambda: None)
    for kind, path, *old in changes:
        pending.add(Change(path, kind, is_directory, old[0] if old else None))
    return [f"{change.kind} {change.path.decode()}" for change in pending.take(*ALL).changes]


def test_one_change_stands_for_those_that_it_tells_of() -> None:
    assert told((CREATED, b"f"), (MODIFIED, b"f"), (ATTRIBUTES, b"f"), (CREATED, b"f")) == ["created f"]
    assert told((MODIFIED, b"f"), (MODIFIED, b"f"), (ATTRIBUTES, b"f")) == ["modified f"]
    assert told((ATTRIBUTES, b"f"), (MODIFIED, b"f")) == ["modified f"]
    assert told((MODIFIED, b"f"), (ATTRIBUTES, b"f"), (REMOVED, b"f")) == ["removed f"]


def test_a_file_that_came_and_went_is_not_told_and_a_folder_is() -> None:
    assert told((CREATED, b"f"), (MODIFIED, b"g"), (REMOVED, b"f")) == ["modified g"]
    assert told((CREATED, b"d"), (REMOVED, b"d"), is_directory=True) == ["created d", "removed d"]
    assert told((REMOVED, b"f"), (CREATED, b"f"), (REMOVED, b"f")) == ["removed f"]


def test_what_was_replaced_is_removed_and_created() -> None:
    assert told((REMOVED, b"f"), (CREATED, b"f"), (MODIFIED, b"f")) == ["removed f", "created f"]


def test_nothing_is_merged_over_a_rename() -> None:
    changes = told((CREATED, b"f"), (RENAMED, b"g", b"f"), (REMOVED, b"f"), (MODIFIED, b"g"))
    assert changes == ["created f", "renamed g", "removed f", "modified g"]


def test_a_file_and_a_folder_of_one_name_are_not_merged() -> None:
    pending = PendingChanges(lambda: None)
    pending.add(Change(b"x", CREATED, True))
    pending.add(Change(b"x", CREATED, False))
    assert len(pending.take(*ALL).changes) == 2


def test_beyond_the_bound_an_overflow_takes_the_place_of_all() -> None:
    stirred: list[None] = []
    pending = PendingChanges(lambda: stirred.append(None))
    for number in range(MAX_CHANGES):
        pending.add(Change(b"%d" % number, CREATED, False))
    assert len(stirred) == MAX_CHANGES
    pending.add(Change(b"one more", CREATED, False))
    pending.add(Change(b"behind", CREATED, False))
    batch = pending.take(*ALL)
    assert [change.path for change in batch.changes] == [b"behind"]
    assert batch.overflow is not None
    assert "10000 changes" in batch.overflow
    assert not pending


def test_long_paths_count_by_their_bytes() -> None:
    pending = PendingChanges(lambda: None)
    for number in range(3):
        pending.add(Change(b"%d" % number + b"x" * (MAX_BYTES // 2 - 10), RENAMED, False, b"y"))
    assert pending.take(*ALL).overflow is not None


def test_what_is_taken_makes_room() -> None:
    pending = PendingChanges(lambda: None)
    for number in range(3 * MAX_CHANGES):
        pending.add(Change(b"%d" % number + b"x" * 300, MODIFIED, False))
        batch = pending.take(*ALL)
        assert (len(batch.changes), batch.overflow) == (1, None)


def test_a_batch_ends_at_either_bound_with_one_change_at_least() -> None:
    pending = PendingChanges(lambda: None)
    for number in range(5):
        pending.add(Change(b"%d" % number + b"x" * 9, CREATED, False))
    assert [len(pending.take(2, 1000).changes), len(pending.take(9, 25).changes)] == [2, 2]
    assert len(pending.take(9, 1).changes) == 1


def test_errors_are_bounded_and_told_once() -> None:
    pending = PendingChanges(lambda: None)
    for number in range(MAX_ERRORS + 5):
        pending.error(b"%d" % number, "why")
        pending.error(b"0", "why")
    assert pending
    assert len(pending.take(0, 0).errors) == MAX_ERRORS
    assert not pending


def test_each_kind_is_one_of_the_record() -> None:
    words = (CREATED, MODIFIED, REMOVED, RENAMED, ATTRIBUTES)
    assert {FsChangeKind(each) for each in words} == set(FsChangeKind)
