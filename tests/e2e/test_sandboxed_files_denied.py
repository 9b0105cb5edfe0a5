"""fs/* with a sandbox: what no request may touch, and what is told of a denial."""

from __future__ import annotations

import os
import socket

import pytest

from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import NOT_THERE, READ_ONLY, REFUSED, Files, children_of, only, workers_of
from tests.support.sandboxes import deny_glob, read_only, rule, workspace_write
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.ours_only("the reference starts its helper and bubblewrap for each call")


@pytest.fixture
def ws(place: Place) -> Files:
    """Files under the workspace preset."""
    return Files(place, workspace_write(place.ws))


@pytest.fixture
def ro(place: Place) -> Files:
    """Files under the read-only preset."""
    return Files(place, read_only(place.ws))


# --- what no request may touch -----------------------------------------------------------------------------

PROCESS_FILES = (
    "environ",
    "mem",
    "maps",
    "fd",
    "fd/0",
    "root",
    "root/etc/passwd",
    "cwd",
    "cwd/f",
    "exe",
    "stat",
)


@pytest.mark.parametrize("process", ["self", "thread-self", "1", "server", "zygote", "worker"])
def test_nothing_of_any_process_is_served(place: Place, sandbox_server: ServerProcess, process: str) -> None:
    Files(place, read_only(place.ws)).read(place.ws / "f")
    if process == "server":
        process = str(sandbox_server.pid)
    elif process == "zygote":
        process = str(children_of(sandbox_server.pid)[0])
    elif process == "worker":
        process = str(workers_of(sandbox_server.pid)[0])
    names = [f"/proc/{process}/{name}" for name in PROCESS_FILES]
    for sandbox in (read_only(place.ws), workspace_write(place.ws), only(place, place.ws, "write")):
        files = Files(place, sandbox)
        for path in names:
            for answer in (
                files.read(path),
                files.read_opened(path),
                files.write(path),
                files.write_opened(path),
                files.ask("fs/readDirectory", path),
                files.ask("fs/getMetadata", path),
                files.copy(path, place.ws / "taken", recursive=True),
            ):
                assert answer in (REFUSED, NOT_THERE)
    assert not (place.ws / "taken").exists()


def test_links_to_processes_are_refused(place: Place, ws: Files) -> None:
    for number, target in enumerate(("/proc/self/environ", "/proc/1/environ", "/proc/thread-self/mem")):
        (place.ws / f"l{number}").symlink_to(target)
        assert ws.read(place.ws / f"l{number}") == REFUSED
        assert ws.read_opened(place.ws / f"l{number}") == REFUSED
    (place.ws / "fd").symlink_to("/dev/fd")
    assert ws.read(place.ws / "fd" / "0") == REFUSED


def test_fifos_sockets_and_devices_neither_hang_nor_open(place: Place, ws: Files) -> None:
    os.mkfifo(place.ws / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place.ws / "socket"))
    place.own()
    with listener:
        assert ws.read(place.ws / "fifo") == (-32600, f"path `{place.ws}/fifo` is not a file")
        assert ws.read_opened(place.ws / "fifo") == (-32600, f"path `{place.ws}/fifo` is not a file")
        assert ws.write(place.ws / "fifo")[0] == -32600
        assert ws.copy(place.ws / "f", place.ws / "fifo")[0] == -32600
        assert ws.copy(place.ws / "fifo", place.ws / "g")[0] == -32600
        assert ws.read(place.ws / "socket") == (-32603, "No such device or address (os error 6)")
        assert ws.write(place.ws / "socket") == (-32603, "No such device or address (os error 6)")
    assert ws.copy(place.ws, place.folder / "no", recursive=True) == READ_ONLY
    (place.ws / "d").mkdir()
    os.mkfifo(place.ws / "d" / "fifo")
    place.own()
    assert ws.copy(place.ws / "d", place.ws / "e", recursive=True) == {}
    assert os.listdir(place.ws / "e") == []


def test_only_the_null_devices_are_written(place: Place, ws: Files) -> None:
    assert ws.write("/dev/null") == {}
    assert ws.write("/dev/zero") == {}
    assert ws.write("/dev/full") == (-32603, "No space left on device (os error 28)")
    for name in ("tty", "random", "urandom", "ptmx"):
        answer = ws.write(f"/dev/{name}")
        assert answer[0] == -32600, (name, answer)
    assert ws.read("/dev/null") == (-32600, "path `/dev/null` is not a file")
    for change in (
        ws.write("/dev/new"),
        ws.write_opened("/dev/shm/new"),
        ws.ask("fs/createDirectory", "/dev/a/b"),
        ws.ask("fs/remove", "/dev/null"),
        ws.copy(place.ws / "f", "/dev/f"),
        ws.copy(place.ws, "/dev", recursive=True),
    ):
        assert change == READ_ONLY


def test_huge_paths_are_refused_like_everywhere(place: Place, ws: Files) -> None:
    too_long = (-32603, "Filename too long (os error 36)")
    for path in (f"{place.ws}/{'n' * 256}", f"{place.ws}{'/d' * 3000}", f"{place.ws}/{'n' * 100_000}"):
        assert ws.read(path) == too_long
        assert ws.write(path) == too_long
        assert ws.ask("fs/getMetadata", path) == too_long
        assert ws.copy(place.ws / "f", path) == too_long


def test_patterns_hide_files_that_come_later(place: Place) -> None:
    place.make("ws/old.env", "secret")
    files = Files(place, workspace_write(place.ws, deny_glob("**/*.env")))
    assert files.read(place.ws / "old.env") == REFUSED
    assert files.write(place.ws / "new.env") == REFUSED
    place.make("ws/later.env", "secret")
    assert files.read(place.ws / "later.env") == REFUSED
    assert files.read_opened(place.ws / "later.env") == REFUSED
    assert files.copy(place.ws / "later.env", place.ws / "taken") == REFUSED
    assert files.write(place.ws / "plain") == {}


# --- what is told of a denial ------------------------------------------------------------------------------


def test_a_denial_names_the_rule(place: Place, ws: Files, ro: Files) -> None:
    ws.write(place.other / "n")
    assert ws.denial == {"path": f"{place.other}/n", "rule": "root: read", "access": "read"}
    ro.write(place.ws / "f")
    assert ro.denial == {"path": f"{place.ws}/f", "rule": "root: read", "access": "read"}
    ws.write(place.ws / ".git" / "n")
    assert ws.denial is not None
    assert (ws.denial["path"], ws.denial["access"]) == (f"{place.ws}/.git", "read")
    denied = Files(place, read_only(place.ws, rule(place.other, "deny")))
    denied.read(place.other / "f")
    assert denied.denial is not None
    assert denied.denial["access"] == "deny"
    ws.read("/proc/self/environ")
    assert ws.denial == {
        "path": "/proc/self",
        "rule": "processes under /proc are not shown",
        "access": "deny",
    }


def test_a_failure_that_is_not_the_sandboxs_says_nothing(place: Place, ws: Files) -> None:
    assert ws.read(place.ws / "none") == NOT_THERE
    assert ws.denial is None
    assert ws.read(place.ws) == (-32600, f"path `{place.ws}` is not a file")
    assert ws.denial is None
    (place.ws / "f").chmod(0)
    if os.stat(place.folder).st_uid:
        assert ws.read(place.ws / "f") == REFUSED
        assert ws.denial is None
