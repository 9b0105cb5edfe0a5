"""Unpacking tar archives, with the client and a real server; also those that want to get out."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, InvalidRequestError
from tests.client.test_archive import LARGE
from tests.client.test_archive import tree as tree
from tests.client.test_file_changes import only


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, size, 0o644
    return info


def archive_of(*members: tarfile.TarInfo) -> bytes:
    """Return an archive whose files hold `x`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return file.getvalue()


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def test_what_was_packed_is_unpacked(remote: ExecServerClient, tree: Path, folder: Path) -> None:
    target = folder / "target"
    target.mkdir()
    assert remote.files.extract(target, remote.files.archive(tree, [])) == []
    assert (target / "large").read_bytes() == LARGE
    assert (target / os.fsdecode(b"\xff\xfe")).read_bytes() == b"odd"
    assert (target / ("n" * 150)).read_bytes() == b""
    assert os.readlink(target / "dangling") == "/nowhere/at all"
    assert os.stat(target / "large").st_mtime_ns == 10**18 + 123_456_789
    modes = [stat.S_IMODE((target / name).stat().st_mode) for name in ("large", "empty")]
    assert modes == [0o640, 0o700]
    again = b"".join(remote.files.archive(tree, []))
    assert remote.files.extract(target, in_pieces(again, 777_777)) == []
    assert (target / "large").read_bytes() == LARGE


def test_nothing_leads_out_of_the_target(remote: ExecServerClient, folder: Path) -> None:
    target, outside = folder / "target", folder / "outside"
    target.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    os.link(outside / "kept", target / "shared")
    data = archive_of(
        member("/etc/execserver-test", size=1),
        member("../outside/new", size=1),
        member("a/../../outside/new", size=1),
        member("way", tarfile.SYMTYPE, str(outside)),
        member("way/new", size=1),
        member("way/folder", tarfile.DIRTYPE),
        member("way", size=1),
        member("hard", tarfile.LNKTYPE, "../outside/kept"),
        member("null", tarfile.CHRTYPE),
        member("fifo", tarfile.FIFOTYPE),
        member("odd", b"Z", size=3_000_000),
        member("shared", size=1),
        member("./deep/good", size=2_000_000),
    )
    errors = remote.files.extract(target, [data])
    assert len(errors) == 10
    assert not os.path.exists("/etc/execserver-test")
    assert {each.name: each.read_text() for each in outside.iterdir()} == {"kept": "kept"}
    assert sorted(os.listdir(target)) == ["deep", "shared", "way"]
    assert (target / "shared").read_text() == "x"
    assert (target / "deep" / "good").read_bytes() == b"x" * 2_000_000


def test_what_is_no_archive_is_refused(remote: ExecServerClient, folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="malformed archive"):
        remote.files.extract(folder, [os.urandom(4096)])
    whole = archive_of(member("a", size=5000), member("b", size=1))
    with pytest.raises(ValueError, match="ends too early"):
        remote.files.extract(folder, [whole[:4096]])


def test_a_sandbox_holds_for_unpacking(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        blockers = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(blockers)}")
    folder, outside = tmp_path / "in", tmp_path / "out"
    (folder / "hidden").mkdir(parents=True)
    outside.mkdir()
    (folder / "kept").write_text("kept")
    data = archive_of(
        member("kept", size=1),
        member("hidden/new", size=1),
        member("link", tarfile.SYMTYPE, "kept"),
        member("sub/new", size=1_500_000),
    )
    errors = remote.files.extract(folder, [data], sandbox=only(folder))
    assert {os.path.basename(each.path.native()) for each in errors} >= {b"kept"}
    assert (folder / "kept").read_text() == "kept"
    assert os.listdir(folder / "hidden") == []
    assert os.readlink(folder / "link") == "kept"
    assert (folder / "sub" / "new").stat().st_size == 1_500_000
    remote.files.extract(outside, [data], sandbox=only(folder))
    assert os.listdir(outside) == []
