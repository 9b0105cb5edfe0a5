"""What the newest file helper takes besides: walks, and files that are handed over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from execserver.protocol.paths import PathUri
from tests.helpers.test_codex_fs import COMMAND, ask, request_for
from tests.support.sandboxes import workspace_write


def uri_of(path: Path) -> str:
    return PathUri.from_native(os.fsencode(path)).uri


WALK = {"maxDepth": 3, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": False}


def test_a_walk_is_answered_in_a_sandbox_and_without_one(tmp_path: Path) -> None:
    uri = uri_of(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f").touch()
    (tmp_path / "link").symlink_to("sub")
    entries = [
        {"path": f"{uri}/sub", "kind": "directory"},
        {"path": f"{uri}/sub/f", "kind": "file"},
    ]
    for sandbox in (None, workspace_write(tmp_path)):
        found = ask("fs/walk", path=uri, options=WALK, sandbox=sandbox)
        assert found == {"entries": entries, "errors": [], "truncated": False}
    none = {**WALK, "maxEntries": 0}
    text = "filesystem walk limits must be greater than zero"
    assert ask("fs/walk", path=uri, options=none) == (-32600, text)


@pytest.mark.parametrize("sandboxed", [False, True])
def test_an_opened_file_is_handed_over_through_the_socket_that_stdin_is(
    tmp_path: Path, sandboxed: bool
) -> None:
    (tmp_path / "f").write_text("hello")
    sandbox = workspace_write(tmp_path) if sandboxed else None

    def opened(**params: object) -> tuple[bytes, list[int]]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=subprocess.PIPE) as helper:
                assert helper.stdout is not None
                ours.sendall(
                    request_for(
                        "fs/open",
                        path=uri_of(tmp_path / "f"),
                        sandbox=sandbox,
                        **params,
                    )
                )
                ours.shutdown(socket.SHUT_WR)
                answer = helper.stdout.read()
            data, descriptors, _, _ = socket.recv_fds(ours, 16, 4)
        assert (data, json.loads(answer)["status"]) == (b"\0", "ok")
        return data, descriptors

    ((fd,), (other,)) = opened()[1], opened(mode="replace")[1]
    try:
        assert (os.fstat(fd).st_size, os.write(other, b"new"), os.read(fd, 9)) == (0, 3, b"new")
    finally:
        os.close(fd)
        os.close(other)


def test_a_file_is_not_opened_where_it_cannot_be_handed_over(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hello")
    text = "Not a socket (os error 88)"
    assert ask("fs/open", path=uri_of(tmp_path / "f"), mode="replace") == (
        -32603,
        text,
    )
    assert (tmp_path / "f").read_text() == "hello"
