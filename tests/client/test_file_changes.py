"""Changes to names, modes, times and whole files, with the client and a real server."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, InternalError, InvalidRequestError, NotFoundError
from execserver.protocol.files import FileVersion


def only(folder: Path) -> dict[str, object]:
    """Return a sandbox in which one folder is writable."""
    entries = [
        {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
        {"path": {"type": "path", "path": str(folder)}, "access": "write"},
        {"path": {"type": "path", "path": str(folder / "kept")}, "access": "read"},
        {"path": {"type": "path", "path": str(folder / "hidden")}, "access": "deny"},
    ]
    files = {"type": "restricted", "entries": entries}
    return {
        "permissions": {"type": "managed", "file_system": files, "network": "restricted"},
        "cwd": str(folder),
        "windowsSandboxLevel": "disabled",
    }


def is_refused(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except (InvalidRequestError, InternalError, NotFoundError):
        return True
    return False


def test_names_modes_and_times_change(remote: ExecServerClient, folder: Path) -> None:
    files = remote.files
    (folder / "a").write_text("x")
    files.rename(folder / "a", folder / "b")
    files.touch(folder / "b", modified_at_ns=10**18 + 1, accessed_at_ns=5)
    files.chmod(folder / "b", 0o640)
    found = os.stat(folder / "b")
    assert (found.st_mtime_ns, found.st_atime_ns, stat.S_IMODE(found.st_mode)) == (10**18 + 1, 5, 0o640)
    assert files.stat(folder / "b").version == FileVersion(modified_at_ns=10**18 + 1, size=1)
    files.touch(folder / "b")
    assert os.stat(folder / "b").st_mtime_ns > 10**18 + 1
    files.touch(folder / "new")
    assert (folder / "new").read_bytes() == b""
    with pytest.raises(NotFoundError):
        files.touch(folder / "none", create=False)
    name = os.fsencode(folder) + b"/\xff\xfe"
    files.rename(folder / "new", name)
    assert os.listdir(os.fsencode(folder)) != []
    assert os.path.exists(name)


def test_links_are_followed_but_for_their_names(remote: ExecServerClient, folder: Path) -> None:
    (folder / "target").write_text("x")
    (folder / "link").symlink_to("target")
    remote.files.chmod(folder / "link", 0o600)
    assert stat.S_IMODE(os.stat(folder / "target").st_mode) == 0o600
    remote.files.rename(folder / "link", folder / "moved")
    assert os.readlink(folder / "moved") == "target"
    remote.files.replace_file(folder / "moved", b"new")
    assert (folder / "moved").is_symlink()
    assert (folder / "target").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_is_replaced_unless_that_is_wanted(remote: ExecServerClient, folder: Path, kind: str) -> None:
    source, target = folder / "a", folder / "b"
    if kind == "file":
        source.write_text("new")
        target.write_text("old")
    else:
        source.mkdir()
        target.mkdir()
    with pytest.raises(InternalError, match=r"File exists \(os error 17\)"):
        remote.files.rename(source, target, replace=False)
    assert source.exists()
    remote.files.rename(source, target)
    assert not source.exists()
    remote.files.rename(target, source, replace=False)
    assert source.exists()


def test_a_file_is_replaced_as_a_whole(remote: ExecServerClient, folder: Path) -> None:
    place = folder / "f"
    remote.files.replace_file(place, b"one", mode=0o400, must_not_exist=True)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o400
    first = remote.files.stat(place).version
    inode = os.stat(place).st_ino
    remote.files.replace_file(place, b"three", if_unchanged_since=first)
    found = os.stat(place)
    assert (found.st_ino != inode, stat.S_IMODE(found.st_mode)) == (True, 0o400)
    with pytest.raises(InvalidRequestError, match="file has changed"):
        remote.files.replace_file(place, b"four", if_unchanged_since=first)
    with pytest.raises(InvalidRequestError, match="file exists"):
        remote.files.replace_file(place, b"four", must_not_exist=True)
    with pytest.raises(InvalidRequestError, match="file has changed"):
        remote.files.replace_file(folder / "gone", b"x", if_unchanged_since=first)
    assert place.read_bytes() == b"three"
    assert os.listdir(folder) == ["f"]


def test_a_sandbox_holds_for_each_change(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        found = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(found)}")
    folder, outside = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("kept", "hidden", "free"):
        (folder / name).write_text(name)
    outside.write_text("out")
    (folder / "away").symlink_to(outside)
    (folder / "tree").mkdir()
    files, sandbox = remote.files, only(folder)
    before = {each.name: each.lstat() for each in folder.iterdir()}
    refused: list[Callable[[], None]] = [
        lambda: files.rename(outside, folder / "x", sandbox=sandbox),
        lambda: files.rename(folder / "free", outside, sandbox=sandbox),
        lambda: files.rename(folder / "hidden", folder / "x", sandbox=sandbox),
        lambda: files.rename(folder / "kept", folder / "x", sandbox=sandbox),
        lambda: files.rename(folder / "free", folder / "kept", sandbox=sandbox),
        lambda: files.rename(folder / "tree", folder / "x", sandbox=sandbox),
        lambda: files.chmod(folder / "kept", 0o777, sandbox=sandbox),
        lambda: files.chmod(folder / "away", 0o777, sandbox=sandbox),
        lambda: files.chmod(folder / "free", 0o4755, sandbox=sandbox),
        lambda: files.chmod(folder / "hidden", 0o777, sandbox=sandbox),
        lambda: files.touch(folder / "kept", modified_at_ns=1, sandbox=sandbox),
        lambda: files.touch(folder / "away", modified_at_ns=1, create=False, sandbox=sandbox),
        lambda: files.touch(outside, modified_at_ns=1, create=False, sandbox=sandbox),
        lambda: files.replace_file(folder / "kept", b"x", sandbox=sandbox),
        lambda: files.replace_file(folder / "away", b"x", sandbox=sandbox),
    ]
    assert [is_refused(attempt) for attempt in refused] == [True] * len(refused)
    after = {each.name: each.lstat() for each in folder.iterdir()}
    assert {n: (s.st_ino, s.st_mode, s.st_mtime_ns) for n, s in after.items()} == {
        n: (s.st_ino, s.st_mode, s.st_mtime_ns) for n, s in before.items()
    }
    assert outside.read_text() == "out"
    files.rename(folder / "free", folder / "renamed", sandbox=sandbox)
    files.chmod(folder / "renamed", 0o600, sandbox=sandbox)
    files.touch(folder / "fresh", modified_at_ns=7, sandbox=sandbox)
    files.replace_file(folder / "renamed", b"new", sandbox=sandbox)
    assert (folder / "renamed").read_bytes() == b"new"
    assert os.stat(folder / "fresh").st_mtime_ns == 7
