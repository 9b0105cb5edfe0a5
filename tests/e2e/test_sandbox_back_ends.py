"""Whole servers on other back ends than our own namespaces: what works, and what is refused how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.sandbox_places import Place, place_for
from tests.e2e.sandboxed_calls import Files
from tests.support.peer import Json, RemoteError
from tests.support.sandboxes import context, managed, read_only, rule, special, workspace_write
from tests.support.server_process import Flavour, ServerProcess
from tests.support.waiting import wait_until
from tests.support.ways import server_flavour

pytestmark = pytest.mark.ours_only("the reference knows bubblewrap only")

BLOCKER = "a seccomp filter, as container programs set one, refuses user namespaces"
CURE = "seccomp=unconfined"


@pytest.fixture(scope="module")
def landlock_server(flavour: Flavour) -> Iterator[ServerProcess]:
    """A server of an ordinary user who may make no user namespaces, on a machine without bubblewrap."""
    with ServerProcess(server_flavour(flavour, "landlock-user"), cwd=ROOT) as running:
        yield running
        assert "Traceback" not in running.errors()


@pytest.fixture
def place(landlock_server: ServerProcess) -> Iterator[Place]:
    connection = landlock_server.connect()
    connection.open_session()
    if answer_of(connection)["landlockAbi"] < 3:
        pytest.skip("this kernel has no Landlock of ABI 3 or newer")
    owner = int(Path(f"/proc/{landlock_server.pid}/status").read_text().split("Uid:")[1].split()[0])
    with place_for(connection, owner) as made:
        yield made
    connection.close()


def answer_of(peer: object) -> Json:
    return peer.call("environment/sandbox", {})  # type: ignore[attr-defined]


def served_by(answer: Json) -> dict[str, str | None]:
    return {policy["name"]: policy["backEnd"] for policy in answer["policies"]}


def test_what_is_served_is_told(place: Place) -> None:
    answer = answer_of(place.peer)
    assert served_by(answer) == {
        "read-only": "landlock",
        "workspace-write": None,
        "narrow": None,
        "network-on": None,
        "managed-proxy": None,
        "full-write": "filter",
    }
    refused = next(policy for policy in answer["policies"] if policy["name"] == "narrow")
    assert BLOCKER in refused["blocker"]
    assert CURE in refused["cure"]


def test_the_log_says_what_is_refused(landlock_server: ServerProcess, place: Place) -> None:
    wait_until(lambda: "only read-only sandboxes work here, by landlock" in landlock_server.errors())
    assert BLOCKER in landlock_server.errors()


def test_reading_works_and_writing_does_not(place: Place) -> None:
    done = place.run("cat f ../other/f; echo x > g; chmod 777 f; mkdir d", read_only(place.ws))
    assert done.stdout == b"inout"
    assert done.exit_code != 0
    assert place.denied()
    assert sorted(entry.name for entry in place.ws.iterdir()) == ["f"]
    files = Files(place, read_only(place.ws))
    assert files.read(place.other / "f") == b"out"
    assert files.write(place.ws / "g") == (-32600, "Permission denied (os error 13)")
    assert files.names(place.ws) == ["f"]


def test_a_writable_folder_with_nothing_protected_works(place: Place) -> None:
    folder = place.make("ws/d/x").parent
    names = [rule(folder / name, "write") for name in (".git", ".agents", ".codex")]
    policy = context(managed(special("root", "read"), rule(folder, "write"), *names), place.other)
    done = place.run(f"echo x > {folder}/g; echo x > {place.ws}/g", policy)
    if b"cannot keep parts" in done.stderr:
        pytest.skip("the policy protects something in every writable folder")
    assert ((folder / "g").read_text(), (place.ws / "g").exists()) == ("x\n", False)


def test_what_landlock_cannot_say_is_refused_with_blocker_and_cure(place: Place) -> None:
    narrow = context(managed(rule(place.ws, "write")), place.ws)
    for policy in (workspace_write(place.ws), narrow, read_only(place.ws, rule(place.other, "deny"))):
        with pytest.raises(RemoteError) as refused:
            place.begin("touch ran", policy)
        assert refused.value.code == -32602
        assert refused.value.message.startswith("failed to prepare process sandbox: ")
        assert BLOCKER in refused.value.message
        assert CURE in refused.value.message
        code, message = Files(place, policy).write(place.ws / "ran")
        assert code == -32600
        assert message.startswith("failed to prepare fs sandbox: ")
        assert BLOCKER in message
    assert not (place.ws / "ran").exists()


def test_full_write_without_network_needs_the_filter_only(place: Place) -> None:
    policy = context({"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}})
    done = place.run("echo x > ../other/g; grep Seccomp: /proc/self/status", policy)
    assert (place.other / "g").read_text() == "x\n"
    assert done.stdout.split()[-1] == b"2"


def test_a_server_on_bubblewrap_says_so(flavour: Flavour) -> None:
    with ServerProcess(server_flavour(flavour, "bubblewrap-user"), cwd=ROOT) as server:
        peer = server.connect()
        peer.open_session()
        found = served_by(answer_of(peer))
        peer.close()
        wait_until(lambda: "bubblewrap" in server.errors())
    assert {name for name, back_end in found.items() if back_end == "bubblewrap"} == {
        *("read-only", "workspace-write", "narrow", "network-on")
    }
