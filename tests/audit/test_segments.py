"""The files of an audit log: torn lines, rotation, a full disk, and who may come to them."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from execserver.audit import segments
from execserver.audit.chain import GENESIS, MAX_LINE_BYTES, digest_of, line_of
from execserver.audit.reading import NotIntact, records, verify
from execserver.audit.segments import AuditFolderError, Segments, segment_names
from tests.support.proc import descriptor_count


class Log:
    """Appends numbered records."""

    def __init__(self, folder: Path, **sizes: int) -> None:
        self.segments = Segments(str(folder), **sizes)
        self.number, self.head = self.segments.end.number, self.segments.end.head

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            line = line_of(self.number + 1, "t", "start", {"pid": self.number}, self.head)
            self.segments.append(line)
            self.number, self.head = self.number + 1, digest_of(line)

    def close(self) -> None:
        self.segments.close()


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "audit"
    for _ in range(3):
        log = Log(folder)
        log.add(2)
        log.close()
    verdict = verify(str(folder))
    assert (verdict.first, verdict.last, verdict.head, verdict.torn) == (1, 6, log.head, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [name for name in os.listdir(folder) if name != "lock"] == ["audit-00000001.jsonl"]
    assert (folder / "audit-00000001.jsonl").stat().st_mode & 0o777 == 0o600


def test_at_its_size_a_file_ends_and_the_oldest_goes(tmp_path: Path) -> None:
    log = Log(tmp_path / "audit", segment_bytes=400, segments=3)
    log.add(20)
    log.close()
    names = segment_names(str(tmp_path / "audit"))
    assert len(names) == 3
    assert names[-1] != "audit-00000003.jsonl"
    verdict = verify(str(tmp_path / "audit"))
    assert (verdict.first > 1, verdict.last, verdict.head) == (True, 20, log.head)
    again = Log(tmp_path / "audit", segment_bytes=400, segments=3)
    assert (again.number, again.head) == (20, log.head)
    again.close()


def test_a_file_that_was_begun_and_stayed_empty_is_no_new_beginning(tmp_path: Path) -> None:
    log = Log(tmp_path / "audit")
    log.add(3)
    log.close()
    (tmp_path / "audit" / "audit-00000002.jsonl").touch()
    again = Log(tmp_path / "audit")
    again.add(1)
    again.close()
    assert verify(str(tmp_path / "audit")).last == 4


def test_several_files_that_stayed_empty_are_no_new_beginning_either(tmp_path: Path) -> None:
    log = Log(tmp_path / "audit")
    log.add(3)
    log.close()
    for number in (2, 3, 4):
        (tmp_path / "audit" / f"audit-0000000{number}.jsonl").touch()
    again = Log(tmp_path / "audit")
    assert (again.number, again.head) == (3, log.head)
    again.add(1)
    again.close()
    assert verify(str(tmp_path / "audit")).last == 4


def test_a_disk_that_fails_at_the_end_of_a_file_costs_no_descriptor_and_begins_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "audit", segment_bytes=200)
    log.add(1)
    before = descriptor_count(os.getpid())

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        for _ in range(3):
            with pytest.raises(OSError, match="the disk is broken"):
                log.add(1)
    assert descriptor_count(os.getpid()) == before
    assert segment_names(str(tmp_path / "audit")) == ["audit-00000001.jsonl"]
    log.add(1)
    log.close()
    assert segment_names(str(tmp_path / "audit"))[1:] == ["audit-00000002.jsonl"]
    assert verify(str(tmp_path / "audit")).last == 2


@pytest.mark.parametrize("torn", [b"{", b'{"n":3,"at":"', b"x" * 300])
def test_a_torn_line_is_cut_off_and_told(tmp_path: Path, torn: bytes) -> None:
    log = Log(tmp_path / "audit")
    log.add(2)
    log.close()
    file = tmp_path / "audit" / "audit-00000001.jsonl"
    with file.open("ab") as opened:
        opened.write(torn)
    assert verify(str(tmp_path / "audit")).torn == len(torn)
    again = Log(tmp_path / "audit")
    assert again.segments.end.cut == len(torn)
    again.add(1)
    again.close()
    assert verify(str(tmp_path / "audit")).last == 3


def test_a_long_torn_line_behind_a_long_one_damages_nothing(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path / "audit"))
    line = line_of(1, "t", "start", {"argv": ["\0" * 2048] * 4}, GENESIS)
    segments.append(line)
    segments.close()
    with (tmp_path / "audit" / "audit-00000001.jsonl").open("ab") as opened:
        opened.write(b"x" * (MAX_LINE_BYTES - 1))
    again = Log(tmp_path / "audit")
    assert (again.number, again.head, again.segments.end.cut) == (1, digest_of(line), MAX_LINE_BYTES - 1)
    again.close()
    assert verify(str(tmp_path / "audit")).last == 1


def test_a_damaged_end_is_not_written_behind(tmp_path: Path) -> None:
    log = Log(tmp_path / "audit")
    log.add(2)
    log.close()
    with (tmp_path / "audit" / "audit-00000001.jsonl").open("ab") as opened:
        opened.write(b"no record\n")
    with pytest.raises(AuditFolderError, match="the last line of the audit log is damaged"):
        Log(tmp_path / "audit")


def test_a_log_that_another_process_lets_go_of_soon_is_waited_for(tmp_path: Path) -> None:
    log = Log(tmp_path / "audit")
    log.add(1)
    timer = threading.Timer(0.1, log.close)
    timer.start()
    next_one = Log(tmp_path / "audit")
    timer.join()
    next_one.close()


def test_two_processes_cannot_write_to_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_LOCK_S", 0.05)
    log = Log(tmp_path / "audit")
    with pytest.raises(AuditFolderError, match="another process writes to this audit log"):
        Log(tmp_path / "audit")
    log.close()
    Log(tmp_path / "audit").close()


def test_a_folder_that_others_may_come_to_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir(0o755)
    (tmp_path / "audit").chmod(0o755)
    with pytest.raises(AuditFolderError, match=f"chmod 700 {tmp_path}/audit"):
        Log(tmp_path / "audit")


def test_a_link_in_the_place_of_the_folder_or_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "audit").symlink_to(tmp_path / "real")
    with pytest.raises(AuditFolderError):
        Log(tmp_path / "audit")
    (tmp_path / "real" / "audit-00000001.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditFolderError):
        Log(tmp_path / "real")
    assert not (tmp_path / "elsewhere").exists()


def test_what_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """With a limit of the file's size, which is a full disk to whoever writes."""
    code = f"""
import resource, signal
from pathlib import Path
from tests.audit.test_segments import Log
log = Log(Path({str(tmp_path / "audit")!r}))
log.add(3)
size = {resource.RLIMIT_FSIZE}
resource.setrlimit(size, (log.segments._size + 50, resource.RLIM_INFINITY))
try:
    log.add(1)
except OSError as error:
    print(error.errno)
resource.setrlimit(size, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.add(2)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("27", "28")  # EFBIG where nothing fits, else a short write
    assert verify(str(tmp_path / "audit")).last == 5


ROOT = Path(__file__).resolve().parents[2]


def test_a_head_of_before_must_be_in_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    log = Log(folder)
    log.add(3)
    kept = log.head
    log.add(3)
    log.close()
    assert verify(str(folder), kept).last == 6
    file = folder / "audit-00000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2]))  # the end cut off: the chain holds
    assert verify(str(folder)).last == 2
    with pytest.raises(NotIntact, match=f"no record has the head {kept}"):
        verify(str(folder), kept)
    file.unlink()
    other = Log(folder)  # all of it written anew
    other.number = 7
    other.head = GENESIS
    other.close()
    with pytest.raises(NotIntact):
        verify(str(folder), kept)


def test_a_change_is_told_with_file_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    log = Log(folder, segment_bytes=400)
    log.add(9)
    log.close()
    names = segment_names(str(folder))
    file = folder / names[1]
    file.write_bytes(file.read_bytes().replace(b'"start"', b'"begin"', 1))
    with pytest.raises(NotIntact, match=f"{names[1]}, line 2"):
        verify(str(folder))
    (folder / names[1]).unlink()
    with pytest.raises(NotIntact, match=f"{names[2]}, line 1"):
        verify(str(folder))
    assert len(list(records(str(folder)))) < 9


def test_without_a_log_there_is_nothing_intact(tmp_path: Path) -> None:
    with pytest.raises(NotIntact, match="there is no audit log"):
        verify(str(tmp_path))
