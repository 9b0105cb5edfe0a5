"""The life of file workers: shared and not shared, stale, stuck, killed, and gone without a trace."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.sandbox_places import Place, place_for
from tests.e2e.sandboxed_calls import NOT_THERE, READ_ONLY, REFUSED, Files, children_of, workers_of
from tests.support.proc import descriptor_count, require_a_look_into
from tests.support.sandboxes import read_only, rule, workspace_write
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ours_only("about our workers")

ROOT = Path(__file__).resolve().parents[2]
SHORT: dict[str, object] = {"file_call_timeout_s": 1.0}
PRIVATE_KIB = 6 * 1024


@contextmanager
def server_with_place(settings: dict[str, object] | None = None) -> Iterator[Place]:
    """Start a server of the test's own, and make a workspace."""
    with ServerProcess(settings=settings, cwd=ROOT) as server:
        peer = server.connect()
        peer.open_session()
        with place_for(peer, os.getuid()) as place:
            place.server = server
            yield place
        peer.close()


@pytest.fixture
def own_place() -> Iterator[Place]:
    """A workspace, and a server of the test's own with short limits."""
    with server_with_place(SHORT) as place:
        yield place


@pytest.fixture
def steady_place() -> Iterator[Place]:
    """A workspace, and a server of the test's own that has looked at its machine."""
    with server_with_place() as place:
        place.peer.call("environment/sandbox", {})
        yield place


def pid_of(place: Place) -> int:
    assert place.server is not None
    return place.server.pid


def read_soon(files: Files, path: Path) -> object:
    """Read, until the answer is not that of a worker that failed."""

    def read() -> object:
        answer = files.read(path)
        return None if isinstance(answer, tuple) and answer[0] == -32603 else [answer]

    found = wait_until(read, 30.0)
    assert isinstance(found, list)
    return found[0]


def test_policies_that_differ_never_share_a_worker(own_place: Place) -> None:
    place = own_place
    policies = [
        read_only(place.ws),
        workspace_write(place.ws),
        read_only(place.ws, rule(place.other, "deny")),
        workspace_write(place.other),
    ]
    for number, policy in enumerate(policies, 1):
        Files(place, policy).read(place.ws / "f")
        assert len(workers_of(pid_of(place))) == number
    for policy in policies * 3:
        Files(place, policy).read(place.ws / "f")
    assert len(workers_of(pid_of(place))) == len(policies)
    assert Files(place, policies[2]).read(place.other / "f") == REFUSED
    assert Files(place, policies[0]).read(place.other / "f") == b"out"
    assert Files(place, policies[3]).write(place.ws / "n") == READ_ONLY
    assert Files(place, policies[1]).write(place.ws / "n") == {}


def test_policies_that_come_to_the_same_share_one(own_place: Place) -> None:
    first = read_only(own_place.ws)
    second = read_only(own_place.ws, rule(own_place.other, "read"))
    for policy in (first, second):
        assert Files(own_place, policy).read(own_place.ws / "f") == b"in"
    assert len(workers_of(pid_of(own_place))) <= 2


def test_a_worker_holds_little_memory_of_its_own(own_place: Place) -> None:
    files = Files(own_place, workspace_write(own_place.ws))
    for _ in range(50):
        files.read(own_place.ws / "f")
        files.write(own_place.ws / "n")
    files.names("/usr/bin")
    (worker,) = workers_of(pid_of(own_place))
    require_a_look_into(worker)
    rollup = Path(f"/proc/{worker}/smaps_rollup").read_text()
    private = sum(int(kib) for kib in re.findall(r"Private_\w+:\s+(\d+)", rollup))
    assert private <= PRIVATE_KIB


def test_a_metadata_folder_made_after_the_first_call_is_protected(own_place: Place) -> None:
    files = Files(own_place, workspace_write(own_place.ws))
    assert files.write(own_place.ws / ".git" / "n") == READ_ONLY
    own_place.make("ws/.git/config", "host")
    assert files.read(own_place.ws / ".git" / "config") == b"host"
    assert files.write(own_place.ws / ".git" / "config") == READ_ONLY
    assert files.write(own_place.ws / ".git" / "n") == READ_ONLY
    assert files.ask("fs/remove", own_place.ws / ".git")[0] == -32603
    assert os.listdir(own_place.ws / ".git") == ["config"]
    (own_place.ws / ".git" / "config").unlink()
    (own_place.ws / ".git").rmdir()
    assert files.write(own_place.ws / ".git") == READ_ONLY


def test_a_root_that_is_replaced_is_the_new_one(own_place: Place) -> None:
    files = Files(own_place, workspace_write(own_place.ws))
    assert files.write(own_place.ws / "a") == {}
    own_place.ws.rename(own_place.folder / "old")
    own_place.ws.mkdir()
    assert files.write(own_place.ws / "b") == {}
    assert os.listdir(own_place.ws) == ["b"]
    assert files.write(own_place.folder / "old" / "c") == READ_ONLY
    own_place.ws.rename(own_place.folder / "older")
    own_place.ws.symlink_to(own_place.folder / "old")
    assert files.write(own_place.ws / "d") in ({}, READ_ONLY)
    assert not (own_place.folder / "older" / "d").exists()


def test_a_denied_folder_made_later_is_denied(own_place: Place) -> None:
    files = Files(own_place, workspace_write(own_place.ws, rule(own_place.ws / "private", "deny")))
    assert files.write(own_place.ws / "private") == READ_ONLY
    own_place.make("ws/private/key", "secret")
    assert files.read(own_place.ws / "private" / "key") == REFUSED
    assert files.ask("fs/readDirectory", own_place.ws / "private") == REFUSED


def test_a_stuck_worker_is_killed_and_the_next_call_gets_another(own_place: Place) -> None:
    files = Files(own_place, workspace_write(own_place.ws))
    assert read_soon(files, own_place.ws / "f") == b"in"
    (worker,) = workers_of(pid_of(own_place))
    os.kill(worker, signal.SIGSTOP)
    assert files.read(own_place.ws / "f") == (-32603, "fs sandbox worker gave no answer for 1 s")
    assert read_soon(files, own_place.ws / "f") == b"in"
    wait_until(lambda: worker not in workers_of(pid_of(own_place)), 20.0)


@pytest.mark.parametrize("who", ["worker", "zygote"])
def test_who_is_killed_is_replaced(own_place: Place, who: str) -> None:
    files = Files(own_place, workspace_write(own_place.ws))
    assert files.read(own_place.ws / "f") == b"in"
    victims = workers_of(pid_of(own_place)) if who == "worker" else children_of(pid_of(own_place))
    (before,) = workers_of(pid_of(own_place))
    os.kill(victims[0], signal.SIGKILL)
    # Until it has ended the old worker may still answer, also when its zygote has gone before it.
    wait_until(lambda: not Path(f"/proc/{before}").exists(), 20.0)
    assert read_soon(files, own_place.ws / "f") == b"in"
    wait_until(lambda: len(workers_of(pid_of(own_place))) == 1, 20.0)


def test_workers_end_with_their_server() -> None:
    with ServerProcess(cwd=ROOT) as server:
        peer = server.connect()
        peer.open_session()
        with place_for(peer, os.getuid()) as place:
            Files(place, workspace_write(place.ws)).read(place.ws / "f")
            workers = workers_of(server.pid)
            assert len(workers) == 1
            server.signal(signal.SIGKILL)
            server.wait()
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 20.0)
        peer.close()


def test_more_policies_than_workers_leave_sixteen(own_place: Place) -> None:
    for number in range(20):
        (own_place.folder / f"root{number}").mkdir()
        files = Files(own_place, workspace_write(own_place.folder / f"root{number}"))
        assert read_soon(files, own_place.ws / "f") == b"in"
    wait_until(lambda: len(workers_of(pid_of(own_place))) == 16, 20.0)


def test_a_thousand_calls_leave_nothing_behind(steady_place: Place) -> None:
    server, mounts = pid_of(steady_place), Path("/proc/self/mountinfo").read_text()
    files = Files(steady_place, workspace_write(steady_place.ws))
    denied = Files(steady_place, read_only(steady_place.ws, rule(steady_place.other, "deny")))
    for each in (files, denied):
        assert each.read(steady_place.ws / "f") == b"in"

    def resources() -> tuple[int, list[int]]:
        everyone = [server, *children_of(server), *workers_of(server)]
        return len(everyone), [descriptor_count(pid) for pid in everyone]

    files.write_opened(steady_place.ws / "g")
    files.ask("fs/remove", steady_place.ws / "none")  # starts the worker for what may take long
    before = resources()
    for _ in range(100):
        files.write(steady_place.ws / "n")
        files.read(steady_place.ws / "n")
        files.read_opened(steady_place.ws / "n")
        files.copy(steady_place.ws / "n", steady_place.ws / "m")
        files.ask("fs/remove", steady_place.ws / "m")
        files.write(steady_place.other / "n")
        files.write(steady_place.ws / ".git")
        denied.read(steady_place.other / "f")
        denied.ask("fs/getMetadata", steady_place.ws / "none")
        denied.ask("fs/readDirectory", steady_place.ws)
    with suppress(AssertionError):
        wait_until(lambda: resources() == before)
    assert resources() == before
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert sorted(os.listdir(steady_place.ws)) == ["f", "g", "n"]
    assert denied.read(steady_place.ws / "none") == NOT_THERE


def test_what_replaces_something_denied_is_denied(own_place: Place) -> None:
    secret, folder = own_place.make("other/key", "old"), own_place.make("other/d/key", "old").parent
    view = workspace_write(own_place.ws, rule(secret, "deny"), rule(folder, "deny"))
    files = Files(own_place, view)
    for round_ in range(5):
        assert read_soon(files, secret) == REFUSED
        assert files.read(folder / "key") == REFUSED
        own_place.make("other/next", f"new {round_}").rename(secret)
        assert files.read(secret) == REFUSED
        folder.rename(own_place.other / f"away{round_}")
        own_place.make("other/d/key", "new")
        assert files.read(folder / "key") == REFUSED
        assert files.names(folder) == REFUSED


def test_what_replaces_something_protected_is_protected(own_place: Place) -> None:
    own_place.make("ws/.git/config", "old")
    own_place.make("ws/.codex", "a file")
    files = Files(own_place, workspace_write(own_place.ws))
    for round_ in range(5):
        assert read_soon(files, own_place.ws / ".git" / "config") in (b"old", b"new")
        (own_place.ws / ".git").rename(own_place.ws / f"moved{round_}")
        own_place.make("ws/.git/config", "new")
        assert files.write(own_place.ws / ".git" / "config") == READ_ONLY
        own_place.make("ws/next", "x").rename(own_place.ws / ".codex")
        assert files.write(own_place.ws / ".codex")[0] != {}
        assert (own_place.ws / ".codex").read_text() == "x"
