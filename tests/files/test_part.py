"""Parts of large files: whoever writes at the same time, what gets the name is of one of them."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from execserver.files import part
from execserver.files.placing import Piece, put_part
from execserver.protocol.errors import InvalidRequest

OTHER_UID = 54_321
TAKEN = "another copy has begun to write this file"


class Upload(NamedTuple):
    """Pieces of 2 bytes of one content, as one writer sends them."""

    folder: Path
    writer: str
    content: bytes
    time: int = 10**18

    def put(self, offset: int, length: int = 2) -> str:
        """Write a piece; return why it was refused, or nothing."""
        content = self.content[offset : offset + length]
        piece = Piece(b".part", offset, content, len(self.content), self.writer)
        try:
            put_part(os.fsencode(self.folder / "file"), piece, (0o640, self.time))
        except InvalidRequest as error:
            return error.message
        return ""


@pytest.fixture
def first(tmp_path: Path) -> Upload:
    """A writer."""
    return Upload(tmp_path, "a", b"aaaaaa")


@pytest.fixture
def second(tmp_path: Path) -> Upload:
    """Another one, of other content of the same size and time."""
    return Upload(tmp_path, "b", b"bbbbbb")


def in_turns(first: Upload, second: Upload) -> list[list[tuple[Upload, int]]]:
    """Return all orders in which the pieces of two writers can come, each writer's in order."""
    orders = []
    for places in itertools.combinations(range(6), 3):
        offsets = {0: iter((0, 2, 4)), 1: iter((0, 2, 4))}
        whose = [0 if at in places else 1 for at in range(6)]
        orders.append([((first, second)[each], next(offsets[each])) for each in whose])
    return orders


@pytest.mark.parametrize("order", range(20))
@pytest.mark.parametrize("other", ["writer", "time", "size"])
def test_two_writers_never_mix(first: Upload, second: Upload, order: int, other: str) -> None:
    if other != "writer":
        second = second._replace(writer=first.writer)
        second = second._replace(time=1) if other == "time" else second._replace(content=b"bbbbbbb")
    steps: Sequence[tuple[Upload, int]] = in_turns(first, second)[order]
    refused = [upload.put(offset) for upload, offset in steps]
    target = first.folder / "file"
    if target.exists():
        assert target.read_bytes() in (b"aaaaaa", b"bbbbbb", b"bbbbbbb")
    kept = first.folder / ".part"
    if kept.exists():
        assert len(set(kept.read_bytes())) <= 1
    holes = {f"bytes are missing before offset {offset}" for offset in (2, 4)}
    assert set(refused) <= {"", TAKEN, *holes}


def test_who_begins_last_goes_on_and_the_other_is_told(first: Upload, second: Upload) -> None:
    assert [first.put(0), first.put(2), second.put(0), second.put(2)] == [""] * 4
    assert first.put(2) == first.put(4) == TAKEN
    assert second.put(4) == ""
    file = first.folder / "file"
    assert (file.read_bytes(), file.stat().st_mtime_ns, os.listdir(first.folder)) == (
        *(b"bbbbbb", second.time, ["file"]),
    )


def test_pieces_may_come_again_and_so_may_the_last_one(first: Upload) -> None:
    assert [first.put(offset) for offset in (0, 2, 2, 0, 2, 4, 4)] == [""] * 7
    assert (first.folder / "file").read_bytes() == b"aaaaaa"


def test_an_empty_piece_behind_all_that_has_come_takes_over(first: Upload, second: Upload) -> None:
    assert first.put(0) == first.put(2) == ""
    assert second.put(2, 0) == TAKEN  # it is no longer as far as that
    assert second.put(4) == TAKEN
    assert second.put(4, 0) == ""
    assert first.put(4) == TAKEN
    assert second.put(4) == ""
    assert (first.folder / "file").read_bytes() == b"aaaabb"  # who takes over has looked at what was there


def test_a_part_that_somebody_writes_right_now_is_refused(first: Upload) -> None:
    assert first.put(0) == ""
    with open(first.folder / ".part", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert first.put(0) == first.put(2) == TAKEN
    assert (first.folder / ".part").read_bytes() == b"aa"


def test_a_part_that_gets_its_name_meanwhile_is_not_written_to(
    first: Upload, second: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in (0, 2):
        first.put(offset)
    lock = fcntl.flock

    def lock_late(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.put(4)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(part.Busy, match=TAKEN):
        put_part(os.fsencode(first.folder / "file"), Piece(b".part", 0, b"bb", 6, "b"), (0o640, second.time))
    assert (first.folder / "file").read_bytes() == b"aaaaaa"


def test_the_last_piece_that_came_twice_at_once_is_there_once_it_is_tried_again(
    first: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first.put(0) == first.put(2) == ""
    lock = fcntl.flock

    def lock_late(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert first.put(4) == ""
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    assert [first.put(4), first.put(4)] == [TAKEN, ""]
    assert ((first.folder / "file").read_bytes(), os.listdir(first.folder)) == (b"aaaaaa", ["file"])


def test_file_systems_without_locks_do(first: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert [first.put(offset) for offset in (0, 2, 4)] == [""] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have files of another user")
def test_a_part_of_another_user_is_replaced_where_a_file_begins_and_else_refused(first: Upload) -> None:
    planted = first.folder / ".part"
    planted.write_bytes(b"planted")
    planted.chmod(0o666)
    os.chown(planted, OTHER_UID, OTHER_UID)
    with planted.open("rb") as theirs:
        assert first.put(2) == "the part belongs to another user"
        assert first.put(0) == ""
        assert theirs.read() == b"planted"
    assert (planted.stat().st_uid, planted.stat().st_mode & 0o777) == (0, 0o600)
    os.chown(first.folder, OTHER_UID, OTHER_UID)
    os.chown(planted, OTHER_UID, OTHER_UID)
    assert first.put(2) == first.put(4) == ""  # all is that user's, as on a file system without owners
    assert (first.folder / "file").read_bytes() == b"aaaaaa"


def test_marks_are_times_that_every_file_system_keeps() -> None:
    marks = {part.mark_of(str(writer), 1, None) for writer in range(1000)}
    assert len(marks) == 1000
    assert all(315_532_800 <= each // 10**9 < 2**32 and each % (2 * 10**9) == 0 for each in marks)
    assert len({part.mark_of("w", 1, 2), part.mark_of("w", 2, 1), part.mark_of("w", 1, None)}) == 3
