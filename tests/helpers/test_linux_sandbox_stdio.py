"""Open files that a caller hands to `codex-linux-sandbox` as stdio: each brings its mount along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.roots import FREE_UID, give, open_folder
from tests.support.sandboxes import managed, special
from tests.support.server_process import Flavour
from tests.support.source import ROOT
from tests.support.ways import server_flavour

READ_ONLY = managed(special("root", "read"))
KINDS = ("root", "user", "bubblewrap-user", "landlock-user")
KEPT = b"first\nsecond\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        (made / "ws").mkdir()
        (made / "f").write_bytes(KEPT)
        yield made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, folder: Path) -> str:
    """Who calls, and what enforces it; the files are the caller's own."""
    if not request.param.startswith("root"):
        give(folder, FREE_UID)
    return str(request.param)


def sandboxed(
    kind: str, folder: Path, script: str, stdin: int, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    main = str(ROOT / "execserver" / "__main__.py")
    ws = folder / "ws"
    options = ["--sandbox-policy-cwd", str(ws), "--permission-profile", json.dumps(READ_ONLY)]
    words = (sys.executable, "-I", main, "codex-linux-sandbox", *options, "--", "sh", "-c", script)
    flavour = server_flavour(Flavour("helper", words, 0), kind)
    env = {"PATH": "/usr/bin:/bin", **flavour.env}
    return subprocess.run(
        flavour.argv, cwd=ws, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, check=False
    )


def test_a_file_given_to_read_is_not_written_through_its_descriptor(kind: str, folder: Path) -> None:
    opened = os.open(folder / "f", os.O_RDONLY)
    try:
        assert os.read(opened, 6) == b"first\n"
        done = sandboxed(kind, folder, "cat; echo x > /proc/self/fd/0", opened)
        assert os.lseek(opened, 0, os.SEEK_CUR) == 6
    finally:
        os.close(opened)
    assert (folder / "f").read_bytes() == KEPT
    assert done.stdout == b"second\n", done


def test_a_folder_given_as_stderr_leads_nowhere(kind: str, folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        script = "echo x > /proc/self/fd/2/f; echo x > /proc/self/fd/2/new; ls /proc/self/fd/2/"
        done = sandboxed(kind, folder, script, subprocess.DEVNULL, opened)
    finally:
        os.close(opened)
    assert (folder / "f").read_bytes() == KEPT
    assert sorted(os.listdir(folder)) == ["f", "ws"]
    assert done.returncode != 0 or kind == "landlock-user"


def test_a_file_larger_than_a_pipe_arrives_whole_and_nobody_stays(folder: Path) -> None:
    content = os.urandom(1 << 20)
    (folder / "f").write_bytes(content)
    kind = "root" if os.geteuid() == 0 else "user"
    with (folder / "f").open("rb") as opened:
        assert sandboxed(kind, folder, "cat", opened.fileno()).stdout == content
        # Who reads a part of it only is not waited for, nor is the file moved on for others.
        assert sandboxed(kind, folder, "head -c 3", opened.fileno()).stdout == content[:3]
