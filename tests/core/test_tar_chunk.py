"""What the audit log tells of a piece of an archive is what is unpacked from it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.core import tar_chunk
from execserver.core.tar_chunk import Head, names_in, next_head
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import PathUri
from execserver.protocol.tar_header import BLOCK
from execserver.protocol.trees import ExtractPosition, FsExtractParams
from execserver.services.trees.extracting import Extraction

_KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"Z"]
_ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["a", "d/b", "../x", "/abs", "l" * 300, "\udcff", "a b\n"]),
        st.sampled_from(_KINDS),
        st.integers(0, 3000),
    ),
    max_size=8,
)


class Anything:
    """Files that can do whatever is asked, and do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: b"/root" if name == "canonicalize" else self

    def __getitem__(self, at: int) -> Any:
        return self


class Noted(Extraction):
    """Notes the names of the entries that it makes."""

    def __init__(self, params: FsExtractParams) -> None:
        anything: Any = Anything()
        super().__init__(anything, anything, params)
        self.made: list[bytes] = []

    def _make(self, head: Head, begun: ExtractPosition) -> None:
        self.made.append(head.name)
        super()._make(head, begun)


def archive(entries: list[tuple[str, bytes, int]], form: int) -> bytes:
    """Return an archive with these names, kinds and sizes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form, errors="surrogateescape") as opened:
        for name, kind, size in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "to"
            info.size = size if kind in (tarfile.REGTYPE, b"Z") else 0
            opened.addfile(info, io.BytesIO(b"\1" * info.size))
    return made.getvalue()


@given(_ENTRIES, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.integers(8, 40), st.booleans())
def test_both_see_the_same_entries(
    entries: list[tuple[str, bytes, int]], form: int, blocks: int, damaged: bool
) -> None:
    rest = archive(entries, form)
    if damaged:
        middle = len(rest) // 2 // BLOCK * BLOCK
        rest = rest[:middle] + b"\xee" * BLOCK + rest[middle + BLOCK :]
    position: ExtractPosition | None = None
    while rest:
        chunk = rest[: blocks * BLOCK]
        told = names_in(chunk, position.size - position.offset if position else 0)
        unpacking = Noted(FsExtractParams(path=PathUri.from_native(b"/d"), chunk=chunk, position=position))
        try:
            answer = unpacking.run(b"/d")
        except InvalidRequest:
            assert told == unpacking.made
            return
        assert told == unpacking.made
        if answer.done or not answer.consumed:
            return
        rest, position = rest[answer.consumed :], answer.position


@pytest.mark.parametrize("left", [-1, 0, 1, 512, 513, 10**9])
def test_content_that_comes_first_is_passed_over(left: int) -> None:
    begun = max(0, min(left, 1024))
    chunk = b"\1" * (begun + -begun % BLOCK) + archive([("a", tarfile.REGTYPE, 5)], tarfile.PAX_FORMAT)
    assert names_in(chunk, left) == ([b"a"] if left <= 1024 else [])


def heads(data: bytes) -> list[tuple[object, ...]]:
    """Return what we see of an archive's entries."""
    found: list[tuple[object, ...]] = []
    at = 0
    while not tar_chunk.is_end(data, at):
        head = next_head(data, at)
        assert head is not None
        found.append(
            (head.name, head.kind, head.size, head.mode, head.modified_ns, head.target, head.content_at)
        )
        at = tar_chunk.behind(data, head.content_at, head.size)
    return found


def members(data: bytes) -> list[tuple[object, ...]]:
    """Return the same as `tarfile` sees it."""
    found: list[tuple[object, ...]] = []
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as opened:
        for info in opened:
            kind = "file" if info.isreg() else "directory" if info.isdir() else "symlink"
            seconds, _, rest = info.pax_headers.get("mtime", str(info.mtime)).partition(".")
            at = max(int(seconds) * 10**9 + int(rest[:9].ljust(9, "0")), 0) if int(seconds) >= 0 else 0
            name = info.name.encode("utf-8", "surrogateescape")
            target = info.linkname.encode("utf-8", "surrogateescape")
            kind = "other" if not (info.isreg() or info.isdir() or info.issym()) else kind
            size = info.size if info.isreg() else 0
            found.append((name, kind, size, info.mode & 0o777, at, target, info.offset_data))
    return found


@pytest.mark.parametrize("form", ["pax", "gnu", "ustar", "v7", "oldgnu"])
def test_what_tar_packs_is_seen_as_tarfile_sees_it(tmp_path: Path, form: str) -> None:
    long = "l" * (90 if form in ("ustar", "v7") else 240)
    folder = tmp_path / "d" / ("f" * 80 if form != "v7" else "f")
    folder.mkdir(parents=True)
    for number, name in enumerate(["a", "\udcff", "\u00e9 b\nc", *([long] if form != "v7" else [])]):
        (folder / name).write_bytes(b"x" * 700 * number)
        os.utime(
            folder / name,
            ns=(1, -1_500_000_000 if form == "gnu" and not number else 1_700_000_000_123_456_789),
        )
    (tmp_path / "d" / "link").symlink_to(long)
    os.link(folder / "a", tmp_path / "d" / "other")
    if form != "v7":
        os.mkfifo(tmp_path / "d" / "fifo")
    try:
        os.setxattr(folder / "a", "user.note", b"y" * 900)
    except OSError:
        pass  # not all file systems have them
    words = [
        "tar",
        f"--format={form}",
        *(["--xattrs"] if form == "pax" else []),
        "-C",
        str(tmp_path),
        "-cf",
        "-",
        "d",
    ]
    packed = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
    assert len(heads(packed)) >= 6
    assert heads(packed) == members(packed)


@given(_ENTRIES, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_what_tarfile_packs_is_seen_as_tarfile_sees_it(
    entries: list[tuple[str, bytes, int]], form: int
) -> None:
    packed = archive([each for each in entries if each[1] != b"Z"], form)
    assert heads(packed) == members(packed)


def extra(flag: bytes, data: bytes) -> bytes:
    """Return a header of our own making, and what it holds."""
    info = tarfile.TarInfo("x")
    info.type, info.size = flag, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)


ENTRY = archive([("a", tarfile.REGTYPE, 5)], tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    "before",
    [
        extra(b"g", b"10 path=g\n"),
        extra(b"g", b"10 path=g\n") + extra(b"x", b"10 path=x\n"),
        extra(b"x", b"10 path=x\n") + extra(b"g", b"10 path=g\n"),
        extra(b"x", b"10 path=x\n") + extra(b"x", b"10 path=y\n"),
        extra(b"X", b"10 path=x\n11 path=yy\n"),
        extra(b"L", b"long\0x") + extra(b"x", b"10 path=x\n"),
        extra(b"x", b"10 path=x\n") + extra(b"L", b"long\0") + extra(b"K", b"to\0"),
        extra(b"g", b"9 size=3\n") + extra(b"x", b"15 mtime=12.50\n12 comment=\n"),
        extra(b"x", b"21 hdrcharset=BINARY\n10 path=\xff\n"),
    ],
)
def test_of_several_headers_the_same_holds_as_for_tarfile(before: bytes) -> None:
    assert heads(before + ENTRY)[:1] == members(before + ENTRY)[:1]


@pytest.mark.parametrize(
    "before",
    [
        extra(b"x", b"1" * 60_000),
        extra(b"x", b"2 " * 30_000),
        extra(b"x", b"60000 comment=" + b"9" * 59_985 + b"\n") * 2,
        extra(b"x", b"1" * 70_000),
        extra(b"x", b"9 size=-\n"),
        extra(b"x", b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
        extra(b"S", b""),
        extra(b"x", b""),
    ],
)
def test_a_header_that_nobody_writes_is_refused(before: bytes) -> None:
    with pytest.raises(InvalidRequest, match="malformed archive"):
        next_head(before + bytes(BLOCK), 0)


def test_nothing_that_comes_is_given_to_tarfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before CVE-2024-6232 was mended it takes 14 s for the digits of one header."""
    digits = extra(b"x", b"60000 comment=" + b"9" * 59_985 + b"\n")
    monkeypatch.delattr(tarfile, "TarFile")
    assert names_in(digits + ENTRY, 0) == [b"a"]


def test_a_header_with_thousands_of_records_is_read() -> None:
    assert names_in(extra(b"x", b"5 a=\n" * 10_000 + b"10 path=b\n") + ENTRY, 0) == [b"b"]


@pytest.mark.parametrize(
    ("told", "ns"), [(b"nan", 0), (b"-1.5", 0), (b"1e9", 0), (b"3.", 3 * 10**9), (b"9" * 11, 0)]
)
def test_a_time_that_files_cannot_have_is_that_of_1970(told: bytes, ns: int) -> None:
    record = b" mtime=%b\n" % told
    head = next_head(extra(b"x", b"%d%b" % (len(record) + 2, record)) + ENTRY, 0)
    assert head is not None
    assert head.modified_ns == ns
