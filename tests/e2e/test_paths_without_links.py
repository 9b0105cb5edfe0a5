"""`followSymlinks` false: no link may stand in a path, without a sandbox and in one.

What is asked and answered is as recorded from 0.169.0.
"""

from __future__ import annotations

import base64
import os
import stat
import time
from pathlib import Path

import pytest

from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import NOT_THERE, READ_ONLY, Files
from tests.support.peer import Json
from tests.support.sandboxes import deny_glob, read_only, workspace_write

pytestmark = pytest.mark.ours_only("0.142.0 does not know the member")

NOT_A_DIRECTORY = (-32603, "Not a directory (os error 20)")
LOOP = (-32603, "Symbolic link loop (os error 40)")
HAS_LINK = (-32600, "path contains a symbolic link")
NOT_REGULAR = (-32600, "path is not a regular file")
NO_TREES = (-32603, "recursive no-follow removal is unsupported")


class Strict(Files):
    """File requests that refuse links."""

    def ask(self, method: str, path: Path | str, /, **members: Json) -> Json:
        return super().ask(method, path, followSymlinks=False, **members)


@pytest.fixture(params=["without a sandbox", "in a sandbox"])
def files(place: Place, request: pytest.FixtureRequest) -> Strict:
    """The requests, in a workspace with links to a file, a folder and nothing beside it."""
    place.make("other/x", "r")
    (place.ws / "folder").symlink_to(place.other)
    (place.ws / "file").symlink_to(place.other / "x")
    (place.ws / "dangling").symlink_to(place.other / "nothing")
    place.make("ws/sub/y", "1")
    place.own()
    return Strict(place, workspace_write(place.ws) if request.param == "in a sandbox" else None)


def test_reading(files: Strict) -> None:
    ws = files.place.ws
    assert files.read(ws / "sub" / "y") == b"1"
    assert files.read(ws / "." / "sub" / "y") == b"1"
    assert files.read(ws / "folder" / "x") == NOT_A_DIRECTORY
    assert files.read(ws / "f" / "x") == NOT_A_DIRECTORY
    assert files.read(ws / "file") == LOOP
    assert files.read(ws / "dangling") == LOOP
    assert files.read(ws / "sub") == NOT_REGULAR
    assert files.read(ws / "none") == NOT_THERE


def test_a_fifo_is_not_waited_for(files: Strict) -> None:
    os.mkfifo(files.place.ws / "fifo")
    files.place.own()
    assert files.read(files.place.ws / "fifo") == NOT_REGULAR
    code, message = files.write(files.place.ws / "fifo")
    assert (code, "is a FIFO" in message) == (-32600, True)


def test_writing(files: Strict) -> None:
    ws, other = files.place.ws, files.place.other
    assert files.write(ws / "folder" / "x") == NOT_A_DIRECTORY
    assert files.write(ws / "folder" / "new") == NOT_A_DIRECTORY
    assert files.write(ws / "file") == LOOP
    assert files.write(ws / "dangling") == LOOP
    assert ((other / "x").read_text(), sorted(os.listdir(other))) == ("r", ["f", "x"])
    assert files.write(ws / "f", b"longer than it was") == {}
    assert files.write(ws / "f", b"short") == {}
    assert files.write(ws / "new") == {}
    assert ((ws / "f").read_bytes(), (ws / "new").read_bytes()) == (b"short", b"written")


def test_making_directories(files: Strict) -> None:
    ws = files.place.ws
    for name in ("folder/x", "file", "dangling", "f", "folder/new", "f/new"):
        assert files.ask("fs/createDirectory", ws / name) == NOT_A_DIRECTORY
    assert files.ask("fs/createDirectory", ws / "made", recursive=False) == {}
    exists = (-32603, "File exists (os error 17)")
    assert files.ask("fs/createDirectory", ws / "made", recursive=False) == exists
    for _ in range(2):
        assert files.ask("fs/createDirectory", ws / "a" / "b" / "c") == {}
    assert (ws / "a" / "b" / "c").is_dir()
    assert files.ask("fs/createDirectory", "/") == {}
    assert sorted(os.listdir(files.place.other)) == ["f", "x"]


def test_looking(files: Strict) -> None:
    ws = files.place.ws
    assert files.ask("fs/getMetadata", ws / "folder" / "x") == NOT_A_DIRECTORY
    assert files.ask("fs/getMetadata", ws / "file") == HAS_LINK
    assert files.ask("fs/getMetadata", ws / "dangling") == HAS_LINK
    assert files.ask("fs/getMetadata", ws / "none") == NOT_THERE
    found = files.ask("fs/getMetadata", ws / "sub" / "y")
    assert (found["isFile"], found["isSymlink"], found["size"]) == (True, False, 1)
    assert files.ask("fs/getMetadata", ws / "sub")["isDirectory"]


def test_the_time_of_birth_is_told(files: Strict) -> None:
    made = files.place.ws / "made"
    before_ms = time.time_ns() // 1_000_000 - 1000  # a file system's clock lags behind by a tick
    files.write(made)
    os.utime(made, (1, 1))
    found = files.ask("fs/getMetadata", made)
    assert found["modifiedAtMs"] == 1000
    assert before_ms <= found["createdAtMs"] <= time.time_ns() // 1_000_000
    usual = Files(files.place, files.sandbox).ask("fs/getMetadata", made)
    assert usual == {**found, "createdAtMs": 0}


def test_removing(files: Strict) -> None:
    ws, other = files.place.ws, files.place.other
    for name in ("file", "folder", "dangling"):
        assert files.ask("fs/remove", ws / name, recursive=False) == HAS_LINK
    assert files.ask("fs/remove", ws / "folder" / "x", recursive=False) == NOT_A_DIRECTORY
    for recursive in (None, True):
        assert files.ask("fs/remove", ws / "sub" / "y", recursive=recursive) == NO_TREES
    assert files.ask("fs/remove", ws / "sub", recursive=False) == (
        -32603,
        "Directory not empty (os error 39)",
    )
    assert files.ask("fs/remove", ws / "sub" / "y", recursive=False) == {}
    assert files.ask("fs/remove", ws / "sub", recursive=False) == {}
    assert files.ask("fs/remove", ws / "sub", recursive=False) == {}
    assert files.ask("fs/remove", ws / "sub", recursive=False, force=False) == NOT_THERE
    assert sorted(os.listdir(ws)) == ["dangling", "f", "file", "folder"]
    assert sorted(os.listdir(other)) == ["f", "x"]


def test_links_are_followed_where_nothing_else_is_said(files: Strict) -> None:
    usual = Files(files.place, files.sandbox)
    for wanted in (None, True):
        read = usual.ask("fs/readFile", files.place.ws / "folder" / "x", followSymlinks=wanted)
        assert base64.b64decode(read["dataBase64"]) == b"r"
    refused = usual.ask("fs/readFile", files.place.ws / "f", followSymlinks="x")
    assert refused == (-32602, 'invalid type: string "x", expected a boolean (in `followSymlinks`)')


def test_a_sandbox_refuses_what_it_refuses_otherwise(place: Place) -> None:
    place.make("ws/secret.key", "s")
    files = Strict(place, workspace_write(place.ws, deny_glob(f"{place.ws}/*.key")))
    assert files.read(place.ws / "secret.key") == (-32600, "Permission denied (os error 13)")
    assert files.ask("fs/getMetadata", place.ws / "secret.key")["size"] == 0
    assert files.ask("fs/remove", place.ws / "secret.key", recursive=False)[0] == -32600
    assert files.write(place.other / "f") == READ_ONLY
    assert files.ask("fs/createDirectory", place.ws / ".git") == READ_ONLY
    assert files.ask("fs/remove", place.other / "f", recursive=False) == READ_ONLY
    assert files.read("/proc/self/environ")[0] == -32600
    reader = Strict(place, read_only(place.ws))
    assert reader.write(place.ws / "f") == READ_ONLY
    assert stat.S_ISREG((place.ws / "secret.key").lstat().st_mode)
