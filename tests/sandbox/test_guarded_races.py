"""Names swapped for links while every path-taking operation runs: what is guarded is never reached.

Here no view stands between the operation and the file, so each win would show.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from execserver.files.copy import CopyOptions
from execserver.files.walk import WalkOptions
from execserver.protocol.errors import RpcError
from execserver.sandbox.files.guard import PathGuard
from execserver.sandbox.files.operations import GuardedFiles
from execserver.sandbox.plan import SandboxPlan
from tests.conftest import LONG
from tests.files.tools import get, put
from tests.support.plain_workers import missing
from tests.support.swapper import Swapper

ROUNDS = 5000 if LONG else 400
SECRET = b"the secret"

Act = Callable[[GuardedFiles, bytes], Any]


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> bytes:
    return os.path.realpath(os.fsencode(tmp_path))


@pytest.fixture
def files(folder: bytes) -> Iterator[GuardedFiles]:
    """Operations on a workspace without `.git` where `*.env` is denied."""
    ws = folder + b"/ws"
    os.makedirs(ws + b"/real/inner")
    put(ws + b"/real/f", b"plain")
    put(ws + b"/real/inner/f", b"plain")
    put(ws + b"/key.env", SECRET)
    put(ws + b"/file", b"plain")
    view = SandboxPlan("read-only", missing=missing(ws + b"/.git"), globs=(ws + b"/**/*.env",))
    guard = PathGuard(view)
    yield GuardedFiles(guard)
    os.close(guard.root)


def content(act: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    def read(path: bytes) -> bytes:
        fd = act(path)
        try:
            return os.read(fd, 100)
        finally:
            os.close(fd)

    return read


def opened_for_writing(act: Callable[[bytes], int]) -> Callable[[bytes], None]:
    def write(path: bytes) -> None:
        fd = act(path)
        try:
            os.write(fd, b"lost")
        finally:
            os.close(fd)

    return write


def attempts(files: GuardedFiles, act: Act, path: bytes) -> Iterator[Any]:
    """Yield what each round returned, or the error's number or text."""
    for _ in range(ROUNDS):
        try:
            yield act(files, path)
        except OSError as error:
            yield error.errno
        except RpcError as error:
            yield error.message


READS: dict[str, Act] = {
    "read": lambda files, path: content(files.open_regular)(path),
    "copy": lambda files, path: copied(files, path),
}


def copied(files: GuardedFiles, path: bytes) -> bytes:
    target = os.path.dirname(path) + b"/../taken"
    try:
        files.copy(path, target, False, CopyOptions())
        return os.readlink(target) if os.path.islink(target) else get(target)
    finally:
        if os.path.lexists(target):
            os.unlink(target)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("target", [b"key.env", b"/proc/self/environ", b"/proc/thread-self/maps"])
def test_no_content_comes_out_through_a_swapped_file(
    files: GuardedFiles, folder: bytes, name: str, target: bytes
) -> None:
    ws = folder + b"/ws"
    os.mkdir(ws + b"/d")
    put(ws + b"/d/x", b"plain")
    os.symlink(target if target[:1] == b"/" else b"../" + target, ws + b"/d/y")
    allowed = {b"plain", os.readlink(ws + b"/d/y")} if name == "copy" else {b"plain"}
    with Swapper(ws + b"/d/x", ws + b"/d/y"):
        found = {one for one in attempts(files, READS[name], ws + b"/d/x") if isinstance(one, bytes)}
    assert found <= allowed


def test_no_file_of_a_process_is_reached_through_a_swapped_folder(files: GuardedFiles, folder: bytes) -> None:
    ws = folder + b"/ws"
    os.mkdir(ws + b"/x")
    put(ws + b"/x/environ", b"plain")
    os.symlink(b"/proc/self", ws + b"/y")
    with Swapper(ws + b"/x", ws + b"/y"):
        path = ws + b"/x/environ"
        assert {one for one in attempts(files, READS["read"], path) if isinstance(one, bytes)} <= {b"plain"}
        listed = attempts(files, lambda files, path: files.read_directory(path), ws + b"/x")
        assert {str(one) for one in listed if isinstance(one, list)} <= {str([("environ", False, True)])}


CHANGES: dict[str, Act] = {
    "write": lambda files, path: opened_for_writing(files.open_target)(path),
    "replace": lambda files, path: opened_for_writing(files.open_replace)(path),
    "create": lambda files, path: files.create_directory(path, False),
    "create-deep": lambda files, path: files.create_directory(path + b"/a/b", True),
    "copy-file": lambda files, path: files.copy(b"/proc/cpuinfo", path, False, CopyOptions()),
    "copy-tree": lambda files, path: files.copy(
        os.path.dirname(path) + b"/../real", path, True, CopyOptions()
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_protected_name_is_not_made_through_a_swapped_folder(
    files: GuardedFiles, folder: bytes, name: str
) -> None:
    """`sub/.git` may be made; `.git` may not, and `sub` is now a folder and now a link to the workspace."""
    ws = folder + b"/ws"
    os.mkdir(ws + b"/sub")
    os.symlink(ws, ws + b"/other")
    with Swapper(ws + b"/sub", ws + b"/other"):
        for _ in attempts(files, CHANGES[name], ws + b"/sub/.git"):
            for folder_ in (b"/sub/.git", b"/other/.git"):
                _clear(ws + folder_)
            assert not os.path.lexists(ws + b"/.git"), "made"


def _clear(path: bytes) -> None:
    """Remove a name if it lies in the real folder; one in the workspace itself would be a win to be seen."""
    parent = os.path.dirname(path)
    try:
        fd = os.open(parent, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.path.isdir(b"/proc/self/fd/%d/.git" % fd):
            shutil.rmtree(".git", dir_fd=fd, ignore_errors=True)
        else:
            os.unlink(b".git", dir_fd=fd)
    except OSError:
        pass
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["write", "replace", "copy-file"])
def test_a_protected_name_is_not_made_through_a_swapped_link(
    files: GuardedFiles, folder: bytes, name: str
) -> None:
    ws = folder + b"/ws"
    put(ws + b"/x", b"plain")
    os.symlink(b".git", ws + b"/y")
    with Swapper(ws + b"/x", ws + b"/y"):
        for _ in attempts(files, CHANGES[name], ws + b"/x"):
            assert not os.path.lexists(ws + b"/.git")


@pytest.mark.parametrize("name", ["write", "replace", "copy-file"])
def test_a_denied_file_is_not_written_through_a_swapped_link(
    files: GuardedFiles, folder: bytes, name: str
) -> None:
    ws = folder + b"/ws"
    put(ws + b"/x", b"plain")
    os.symlink(b"key.env", ws + b"/y")
    with Swapper(ws + b"/x", ws + b"/y"):
        for _ in attempts(files, CHANGES[name], ws + b"/x"):
            pass
    assert get(ws + b"/key.env") == SECRET


def test_trees_are_not_copied_or_removed_through_swapped_folders(files: GuardedFiles, folder: bytes) -> None:
    ws = folder + b"/ws"
    outside = folder + b"/outside"
    os.mkdir(outside)
    put(outside + b"/kept", b"kept")
    os.makedirs(ws + b"/t")
    with Swapper(ws + b"/t/x", ws + b"/t/y"):
        for _ in range(ROUNDS // 4):
            os.makedirs(ws + b"/t/x", exist_ok=True)
            try:
                os.symlink(outside, ws + b"/t/y")
            except FileExistsError:
                pass
            try:
                files.remove(ws + b"/t", recursive=True, force=True)
            except (OSError, RpcError):
                pass
            os.makedirs(ws + b"/t", exist_ok=True)
            assert os.listdir(outside) == [b"kept"]


def test_a_walk_lists_no_process_through_a_swapped_folder(files: GuardedFiles, folder: bytes) -> None:
    ws = folder + b"/ws"
    os.makedirs(ws + b"/t/x/plain")
    os.symlink(b"/proc/self", ws + b"/t/y")
    options = WalkOptions(3, 1000, 5000, False, False)
    with Swapper(ws + b"/t/x", ws + b"/t/y"):
        for _ in range(ROUNDS):
            try:
                walked = files.walk(ws + b"/t", options)
            except OSError:
                continue
            assert {uri.rsplit("/", 1)[1] for uri, _ in walked.entries} <= {"x", "y", "plain"}


@pytest.mark.parametrize("name", ["get_metadata", "canonicalize"])
def test_nothing_is_told_of_a_process_through_a_swapped_link(
    files: GuardedFiles, folder: bytes, name: str
) -> None:
    ws = folder + b"/ws"
    put(ws + b"/x", b"plain")
    os.symlink(b"/proc/self/cwd", ws + b"/y")
    with Swapper(ws + b"/x", ws + b"/y"):
        for found in attempts(files, lambda files, path: getattr(files, name)(path), ws + b"/x"):
            if isinstance(found, tuple):
                assert (found[1], found[3]) == (True, 5)
            else:
                assert isinstance(found, int) or found in (ws + b"/x", ws + b"/y")
