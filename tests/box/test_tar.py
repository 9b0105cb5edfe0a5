"""Tar as a stream, of a box that is not trusted; more of it is in `test_cp`."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from execserver.box.trees import tar
from execserver.box.trees.tar import BadArchive, Entry, Reader
from execserver.protocol.tar_header import BLOCK


def read(data: bytes) -> list[Entry]:
    """Return the entries of an archive."""
    reader = Reader()
    entries = [item for item in reader.feed(data) if isinstance(item, Entry)]
    assert reader.is_complete
    return entries


def packed(*infos: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of these, without content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as opened:
        for info in infos:
            opened.addfile(info)
    return made.getvalue()


def extra(data: bytes) -> bytes:
    """Return a pax header that holds this."""
    info = tarfile.TarInfo("x")
    info.type, info.size = b"x", len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(tar.padding(len(data)))


def test_a_time_before_1970_in_the_form_of_gnu_is_read() -> None:
    info = tarfile.TarInfo("a")
    info.mtime = -86_400
    assert [each.modified_ns for each in read(packed(info, form=tarfile.GNU_FORMAT))] == [-86_400 * 10**9]


def test_a_header_with_thousands_of_records_is_read() -> None:
    data = extra(b"5 a=\n" * 13_000 + b"10 path=b\n") + packed(tarfile.TarInfo("a"))
    assert [each.name for each in read(data)] == [b"b"]


@pytest.mark.parametrize(
    "data", [b"1" * 60_000, b"2 " * 30_000, b"9 size=-1\n", b"99 path=a\n", b"8 path=\xff"]
)
def test_a_header_that_nobody_writes_is_refused(data: bytes) -> None:
    with pytest.raises(BadArchive):
        read(extra(data) + packed(tarfile.TarInfo("a")))


def test_a_size_below_nothing_is_refused() -> None:
    block = bytearray(tar.header(Entry(b"x", tar.FILE)))
    block[124:136] = b"\377" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(BadArchive, match="a size is damaged"):
        read(bytes(block))


@pytest.mark.parametrize("mtime", [b"9" * 19, b"-" + b"9" * 19])
def test_a_time_that_no_file_system_has_can_be_set(tmp_path: Path, mtime: bytes) -> None:
    record = b" mtime=%b\n" % mtime
    data = extra(b"%d%b" % (len(record) + 2, record)) + packed(tarfile.TarInfo("a"))
    (entry,) = read(data)
    os.utime(tmp_path, ns=(entry.modified_ns, entry.modified_ns))


def test_headers_without_end_are_not_held() -> None:
    reader = Reader()
    entry = tar.header(Entry(b"n" * 200, tar.FILE))[: 2 * BLOCK]
    for _ in range(16):
        assert list(reader.feed(entry)) == []
    assert sum(map(len, reader._next.values())) + len(reader._held) < 1024
    with pytest.raises(BadArchive, match="follow each other without an entry"):
        list(reader.feed(entry))


def test_what_a_last_record_has_behind_the_end_is_passed_over_and_more_refused() -> None:
    reader = Reader()
    assert list(reader.feed(tar.END + b"x" * (2**20 - 2 * BLOCK))) == []
    assert reader.ended
    with pytest.raises(BadArchive, match="goes on behind its end"):
        list(reader.feed(b"x" * 2 * BLOCK))
