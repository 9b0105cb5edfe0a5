"""Trees as tar archives, with the client and a real server."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, InvalidRequestError, NotFoundError
from execserver.client.rules import wire
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_ARCHIVE
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import ArchivePosition, FsArchiveParams
from tests.client.test_file_changes import only

LARGE = bytes(range(256)) * 10_000  # three pages


def packed(
    remote: ExecServerClient, root: Path, sandbox: dict[str, object] | None = None
) -> tuple[dict[bytes, tarfile.TarInfo], dict[bytes, bytes], list[str]]:
    """Return the members by name, the contents of the files, and the errors."""
    errors: list[FsWalkError] = []
    data = b"".join(remote.files.archive(root, errors, sandbox=sandbox))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        members = {os.fsencode(each.name): each for each in archive.getmembers()}
        files = {name: archive.extractfile(each) for name, each in members.items() if each.isreg()}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    return members, contents, [each.message for each in errors]


@pytest.fixture
def tree(folder: Path) -> Path:
    """A tree with what archives have to care about."""
    root = folder / "tree"
    (root / "empty").mkdir(parents=True)
    (root / "empty").chmod(0o700)
    (root / "large").write_bytes(LARGE)
    (root / "large").chmod(0o640)
    (root / ("n" * 150)).write_bytes(b"")
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"odd")
    (root / "link").symlink_to("large")
    (root / "dangling").symlink_to("/nowhere/at all")
    os.mkfifo(root / "fifo")
    os.utime(root / "large", ns=(1, 10**18 + 123_456_789))
    return root


def test_a_tree_is_packed(remote: ExecServerClient, tree: Path) -> None:
    members, contents, errors = packed(remote, tree)
    assert errors == []
    assert contents == {b"large": LARGE, b"n" * 150: b"", b"\xff\xfe": b"odd"}
    assert {name for name, each in members.items() if each.isdir()} == {b"empty"}
    links = {name: each.linkname for name, each in members.items() if each.issym()}
    assert links == {b"link": "large", b"dangling": "/nowhere/at all"}
    assert members[b"large"].pax_headers["mtime"] == "1000000000.123456789"
    assert (members[b"large"].mode, members[b"empty"].mode) == (0o640, 0o700)


def test_the_systems_tar_unpacks_it(remote: ExecServerClient, tree: Path, folder: Path) -> None:
    target = folder / "unpacked"
    target.mkdir()
    data = b"".join(remote.files.archive(tree, []))
    subprocess.run(["tar", "xf", "-", "-C", str(target)], input=data, check=True, timeout=20)
    assert (target / "large").read_bytes() == LARGE
    assert stat.S_IMODE((target / "empty").stat().st_mode) == 0o700
    assert os.stat(target / "large").st_mtime_ns == 10**18 + 123_456_789
    assert os.readlink(target / "dangling") == "/nowhere/at all"


def test_a_single_file_is_packed(remote: ExecServerClient, tree: Path) -> None:
    assert packed(remote, tree / "large")[1] == {b"large": LARGE}
    assert packed(remote, tree / "link")[1] == {b"link": LARGE}
    assert packed(remote, tree / ("n" * 150))[1] == {b"n" * 150: b""}


def test_a_file_that_becomes_shorter_spoils_nothing(remote: ExecServerClient, tree: Path) -> None:
    errors: list[FsWalkError] = []
    pieces = remote.files.archive(tree, errors)
    data = next(pieces)
    os.truncate(tree / "large", 10)
    data += b"".join(pieces)
    assert ["shorter" in each.message for each in errors].count(True) >= 1
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        sizes = {os.fsencode(each.name): each.size for each in archive.getmembers()}
    assert sizes[b"large"] == len(LARGE)
    assert sizes[b"\xff\xfe"] == 3


def test_wrong_positions_are_refused(remote: ExecServerClient, tree: Path) -> None:
    root = PathUri.from_native(os.fsencode(tree))
    beyond = ArchivePosition(path=PathUri.from_native(os.fsencode(tree / "large")), offset=2, size=1)
    elsewhere = ArchivePosition(path=PathUri.from_native(b"/etc/passwd"), offset=0, size=10)
    for position in (beyond, elsewhere):
        with pytest.raises(InvalidRequestError):
            remote.files._session.call(FS_ARCHIVE, FsArchiveParams(path=root, position=position))
    with pytest.raises(NotFoundError):
        packed(remote, tree / "none")


def test_a_sandbox_holds_for_archives(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        blockers = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(blockers)}")
    folder = tmp_path / "in"
    (folder / "hidden").mkdir(parents=True)
    (folder / "kept").write_text("a word")
    (folder / "kept").chmod(0o604)
    (folder / "hidden" / "secret").write_text("a secret word")
    (folder / "way").symlink_to("hidden/secret")
    members, contents, _ = packed(remote, folder, only(folder))
    assert contents == {b"kept": b"a word"}
    assert (members[b"way"].linkname, members[b"kept"].mode) == ("hidden/secret", 0o604)
    secret = ArchivePosition(
        path=PathUri.from_native(os.fsencode(folder / "hidden" / "secret")), offset=0, size=10
    )
    root = PathUri.from_native(os.fsencode(folder))
    params = FsArchiveParams(path=root, position=secret, sandbox=wire.sandbox_context(only(folder)))
    with pytest.raises((InvalidRequestError, NotFoundError)):
        remote.files._session.call(FS_ARCHIVE, params)
