"""`.git`, `.agents`, `.codex` below a workspace: nobody inside changes or makes them, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.e2e.conftest import ROOT, StartServer
from tests.e2e.sandbox_places import Place, place_for
from tests.support.proc import children_of, descendants_of, is_kept_ready, zygotes_of
from tests.support.running import outcome
from tests.support.sandboxes import read_only, rule, workspace_write
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

CLEANED_WITHIN_S = 2.0 if LONG else 20.0  # short runs share the machine
pytestmark = pytest.mark.ours_only("what the reference does is in docs/compatibility.md")

METADATA = [".agents", ".codex", ".git"]


def started(place: Place, script: str = "echo ready; exec sleep 600") -> str:
    """Start something that holds the placeholders, and wait until it runs."""
    name = place.begin(script, workspace_write(place.ws))
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    return name


def left(place: Place) -> list[str]:
    return sorted(name for name in os.listdir(place.ws) if name.startswith("."))


def wait_until_clean(place: Place) -> None:
    wait_until(lambda: left(place) == [], timeout=CLEANED_WITHIN_S)


def test_existing_metadata_is_read_and_never_changed(place: Place) -> None:
    place.make("ws/.git/config", "[core]\n")
    place.make("ws/.codex/config.toml", "x\n")
    script = (
        "cat .git/config .codex/config.toml; echo y > .git/config; echo y > .codex/config.toml; rm -rf .git; "
        "mv .codex moved; ln -sf /tmp .agents; echo ok > g"
    )
    found = place.run(script, workspace_write(place.ws))
    assert found.stdout == b"[core]\nx\n"
    assert (place.ws / ".git" / "config").read_text() == "[core]\n"
    assert (place.ws / ".codex" / "config.toml").read_text() == "x\n"
    assert sorted(os.listdir(place.ws)) == [".codex", ".git", "f", "g"]


@pytest.mark.parametrize(
    "script",
    [
        "git init",
        "mkdir .codex",
        "mkdir .git",
        "echo x > .agents",
        "echo x > .git/config",
        "mkdir new; mv new .codex",
        "ln -s /tmp .git",
        "rmdir .git",
        "mv .git elsewhere",
        "umount .git || mount --bind /tmp .git",
    ],
)
def test_missing_metadata_cannot_be_made_and_is_absent_afterwards(place: Place, script: str) -> None:
    found = place.run(script, workspace_write(place.ws))
    assert found.exit_code != 0
    assert left(place) == []


def test_a_metadata_name_deeper_down_is_ordinary(place: Place) -> None:
    assert (
        place.run("mkdir -p sub/.git && echo x > sub/.git/config", workspace_write(place.ws)).exit_code == 0
    )


def test_a_folder_of_a_repository_as_workspace(place: Place) -> None:
    place.git("init", "-q")
    place.make("ws/sub/file", "x\n")
    place.git("add", "-A")
    place.git("commit", "-qm", "first")
    sub = place.ws / "sub"
    script = (
        "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' HOME=/;"
        "git rev-parse --show-toplevel; git status --porcelain; echo y >> file; git diff --stat"
    )
    found = place.run(script, workspace_write(sub), cwd=f"file://{sub}")
    first, *rest = found.stdout.decode().splitlines()
    assert first == str(place.ws)
    assert [line for line in rest if ".git" in line or ".codex" in line or ".agents" in line] == []
    assert (sub / "file").read_text() == "x\ny\n"
    for command in ("git init", "mkdir .codex"):
        assert place.run(command, workspace_write(sub), cwd=f"file://{sub}").exit_code != 0
    assert sorted(os.listdir(sub)) == ["file"]
    assert place.git("status", "--porcelain") == " M sub/file\n"


def test_concurrent_commands_share_the_placeholders(place: Place) -> None:
    first, second = started(place), started(place)
    assert left(place) == METADATA
    place.peer.call("process/terminate", {"processId": first})
    outcome(place.peer, first)
    third = place.run("mkdir .git/x", workspace_write(place.ws))
    assert third.exit_code != 0
    assert left(place) == METADATA
    place.peer.call("process/terminate", {"processId": second})
    wait_until_clean(place)


def test_two_servers_never_drop_each_others_cover(place: Place, sandbox_server: ServerProcess) -> None:
    with ServerProcess(sandbox_server.flavour, cwd=ROOT) as other, closing(other.connect()) as connection:
        connection.open_session()
        beside = Place(place.folder, connection)
        mine, theirs = started(place), started(beside)
        place.peer.call("process/terminate", {"processId": mine})
        outcome(place.peer, mine)
        time.sleep(0.3)  # longer than an owner waits before it tries again
        assert left(place) == METADATA
        late = beside.begin("mkdir .git/x; echo rc=$?", workspace_write(beside.ws))
        assert outcome(connection, late).stdout == b"rc=1\n"
        connection.call("process/terminate", {"processId": theirs})
        wait_until_clean(place)


def test_starts_and_ends_of_two_servers_do_not_disturb_each_other(
    place: Place, sandbox_server: ServerProcess
) -> None:
    with ServerProcess(sandbox_server.flavour, cwd=ROOT) as other, closing(other.connect()) as connection:
        connection.open_session()
        failures: list[object] = []

        def run_many(who: Place) -> None:
            try:
                for number in range(40):
                    found = who.run(f"echo {number}; mkdir .git/x 2> /dev/null", workspace_write(who.ws))
                    if (found.stdout, found.exit_code) != (b"%d\n" % number, 1):
                        failures.append(found)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run_many, args=(Place(place.folder, connection),))
        thread.start()
        run_many(place)
        thread.join()
        assert failures == []
        wait_until_clean(place)


def test_terminate_leaves_nothing(place: Place) -> None:
    name = started(place)
    assert left(place) == METADATA
    place.peer.call("process/terminate", {"processId": name})
    wait_until_clean(place)


def test_a_missing_denied_path_leaves_nothing_either(place: Place) -> None:
    sandbox = workspace_write(place.ws, rule(place.ws / "secret", "deny"), rule(place.ws / "a" / "b", "read"))
    name = place.begin("echo ready; exec sleep 600", sandbox)
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    place.peer.call("process/terminate", {"processId": name})
    wait_until(lambda: sorted(os.listdir(place.ws)) == ["f"], timeout=CLEANED_WITHIN_S)


def test_a_read_only_policy_makes_no_placeholder(place: Place) -> None:
    name = place.begin("echo ready; exec sleep 600", read_only(place.ws))
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    assert left(place) == []
    place.peer.call("process/terminate", {"processId": name})


def test_the_records_of_placeholders_are_out_of_reach(place: Place) -> None:
    uid = os.stat(place.ws).st_uid
    folders = [
        f"/tmp/execserver-records-{uid}",
        f"/run/execserver-records-{uid}",
        f"/run/user/{uid}/execserver",
    ]
    (there,) = [folder for folder in folders if os.path.exists(folder)][-1:] or [folders[0]]
    sandbox = workspace_write(place.ws, rule("/tmp", "write"), rule("/run", "write"))
    found = place.run(
        f"ls {there}; mkdir -p {there}/1-forged; rmdir {there}; mv {there} {there}.old", sandbox
    )
    assert (found.stdout, found.exit_code) == (b"", 1)
    assert not os.path.exists(f"{there}/1-forged")
    assert os.path.exists(there)


# --- after a kill ------------------------------------------------------------------------------------------


@pytest.fixture
def own(start_server: StartServer) -> Iterator[Place]:
    """A place on a server of the test's own."""
    server = start_server()
    connection = server.connect()
    connection.open_session()
    with place_for(connection, os.geteuid()) as made:
        made.server = server
        yield made
    connection.close()


def server_of(place: Place) -> ServerProcess:
    assert place.server is not None
    return place.server


def one_init(place: Place) -> int:
    """Return the first process of the one sandbox."""
    (zygote,) = zygotes_of(server_of(place).pid)
    (init,) = [pid for pid in children_of(zygote) if not is_kept_ready(pid)]
    return init


def test_after_the_command_was_killed_nothing_is_left(own: Place) -> None:
    name = started(own)
    (command,) = children_of(one_init(own))
    os.kill(command, signal.SIGKILL)
    assert outcome(own.peer, name).exit_code == 137
    wait_until_clean(own)


def test_after_the_init_was_killed_nothing_is_left(own: Place) -> None:
    name = started(own)
    os.kill(one_init(own), signal.SIGKILL)
    assert outcome(own.peer, name).exit_code == 137
    wait_until_clean(own)


def test_after_the_zygote_was_killed_nothing_is_left(own: Place) -> None:
    name = started(own)
    (zygote,) = zygotes_of(server_of(own).pid)
    below = descendants_of(zygote)
    os.kill(zygote, signal.SIGKILL)
    assert outcome(own.peer, name).exit_code == 137
    wait_until_clean(own)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    assert own.run("echo again", workspace_write(own.ws)).stdout == b"again\n"
    assert left(own) == []


def test_after_the_server_was_killed_nothing_is_left(own: Place) -> None:
    started(own)
    server_of(own).signal(signal.SIGKILL)
    server_of(own).wait()
    wait_until_clean(own)


def test_after_both_were_killed_the_next_start_cleans(own: Place, start_server: StartServer) -> None:
    started(own)
    server = server_of(own)
    (zygote,) = zygotes_of(server.pid)
    os.kill(zygote, signal.SIGSTOP)  # so that it notices nothing
    server.signal(signal.SIGKILL)
    server.wait()
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{zygote}") or _is_zombie(zygote))
    assert left(own) == METADATA
    start_server()
    wait_until_clean(own)


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
