"""What the reference is weak at (wire contract, sandbox weaknesses), one test each: we are not.

Where a stand-in on the host cannot be avoided while a command runs, its bounds are tested instead.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import Files
from tests.sandbox.attacks.conftest import GONE_S
from tests.support.running import PATH, outcome
from tests.support.sandboxes import context, managed, read_only, rule, special, workspace_write
from tests.support.waiting import wait_until

METADATA = [".agents", ".codex", ".git"]


def hidden_names(place: Place) -> list[str]:
    return sorted(name for name in os.listdir(place.ws) if name.startswith("."))


def test_root_inside_has_no_capabilities_and_changes_no_mount(place: Place) -> None:
    script = "grep CapEff /proc/self/status; mount -o remount,bind,rw / && echo x > ../other/n; umount .git"
    place.make("ws/.git/config", "kept")
    done = place.run(script, workspace_write(place.ws))
    assert done.stdout.split()[1] == b"0" * 16
    assert os.listdir(place.other) == ["f"]
    place.run("echo attacked > .git/config", workspace_write(place.ws))
    assert (place.ws / ".git" / "config").read_text() == "kept"


def test_settings_in_proc_cannot_be_written(place: Place) -> None:
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    name = os.uname().nodename
    script = (
        "for f in hostname core_pattern; do cat /proc/sys/kernel/$f > /proc/sys/kernel/$f && echo wrote; done"
    )
    assert place.run(script, read_only(place.ws)).stdout == b""
    assert (Path("/proc/sys/kernel/core_pattern").read_text(), os.uname().nodename) == (before, name)


def test_no_datagram_reaches_a_socket_of_the_host(place: Place) -> None:
    log = place.ws / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(log))
        log.chmod(0o777)
        listener.setblocking(False)
        code = "use Socket; socket(S, AF_UNIX, SOCK_DGRAM, 0) or exit 3; send(S, 'x', 0, sockaddr_un('log'));"
        done = place.run(["perl", "-e", code], workspace_write(place.ws))
        assert done.exit_code == 3 or b"execvp" in done.stderr
        try:
            heard = listener.recv(10)
        except BlockingIOError:
            heard = b""
    assert heard == b""


def test_shared_memory_of_the_host_is_another(place: Place) -> None:
    """The segments listed inside are those of a namespace of its own: none."""
    script = "readlink /proc/self/ns/ipc; wc -l < /proc/sysvipc/shm"
    inside, segments = place.run(script, read_only(place.ws)).stdout.split()
    assert inside.decode() != os.readlink("/proc/self/ns/ipc")
    assert segments == b"1"


def test_a_search_path_with_traps_runs_nothing_unconfined(place: Place) -> None:
    mark = place.folder / "mark"
    for name in ("bwrap", "rg", "sh", "git", "codex-linux-sandbox"):
        trap = place.make(f"traps/{name}", f"#!/bin/sh\necho {name} >> {mark}\n")
        trap.chmod(0o755)
    env = {"PATH": f"{place.folder}/traps:/usr/bin:/bin"}
    policy = workspace_write(
        place.ws, {"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"}
    )
    done = place.run(["/bin/cat", "f"], policy, env=env)
    assert done.stdout == b"in"
    assert not mark.exists()


def test_terminate_leaves_no_metadata_folders(place: Place) -> None:
    name = place.begin("echo ready; exec sleep 600", workspace_write(place.ws))
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    place.peer.call("process/terminate", {"processId": name})
    outcome(place.peer, name)
    wait_until(lambda: hidden_names(place) == [], timeout=GONE_S)


def test_stand_ins_are_empty_short_lived_and_only_where_something_is_missing(place: Place) -> None:
    place.make("ws/.git/config", "kept")
    name = place.begin("echo ready; exec sleep 600", workspace_write(place.ws))
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    while_running = {entry: sorted(os.listdir(place.ws / entry)) for entry in hidden_names(place)}
    assert while_running in ({".agents": [], ".codex": [], ".git": ["config"]}, {".git": ["config"]})
    place.peer.call("process/terminate", {"processId": name})
    wait_until(lambda: hidden_names(place) == [".git"], timeout=GONE_S)
    Files(place, workspace_write(place.ws)).write(place.ws / "n")
    assert hidden_names(place) == [".git"], "file calls need no stand-ins"


def test_a_fifo_hangs_no_file_call(place: Place) -> None:
    os.mkfifo(place.ws / "fifo")
    place.own()
    files = Files(place, workspace_write(place.ws))
    begun = time.monotonic()
    assert isinstance(files.write(place.ws / "fifo"), tuple)
    assert isinstance(files.copy(place.ws / "f", place.ws / "fifo"), tuple)
    assert isinstance(files.read(place.ws / "fifo"), tuple)
    assert time.monotonic() - begun < 20


def test_a_narrow_policy_runs_processes_without_naming_the_servers_folder(place: Place) -> None:
    policy = context(managed(special("minimal", "read"), rule(place.ws, "write")), place.ws)
    done = place.run("cat f; echo x > n; ls ../other", policy)
    assert (done.stdout, (place.ws / "n").read_text()) == (b"in", "x\n")
    assert b"other" in done.stderr


def test_files_and_processes_agree_on_workspace_roots(place: Place) -> None:
    policy = context(
        managed(special("root", "read"), special("project_roots", "write")),
        place.ws,
        workspaceRoots=[f"file://{place.other}"],
    )
    files = Files(place, policy)
    assert files.write(place.other / "by-file") == {}
    assert isinstance(files.write(place.ws / "by-file"), tuple)
    place.run("echo x > ../other/by-process; echo x > by-process", policy)
    assert sorted(os.listdir(place.other)) == ["by-file", "by-process", "f"]
    assert sorted(os.listdir(place.ws)) == ["f"]


def test_a_folder_for_temporary_files_that_cannot_be_is_no_obstacle(place: Place) -> None:
    for folder in ("/proc/nowhere", "/dev/null/x", f"{place.ws}/f"):
        done = place.run(
            "echo fine", workspace_write(place.ws, special("tmpdir", "write")), env={**PATH, "TMPDIR": folder}
        )
        assert (done.stdout, done.exit_code) == (b"fine\n", 0), folder


def test_full_read_is_not_served_from_the_servers_own_process(place: Place) -> None:
    files = Files(place, read_only(place.ws))
    for path in ("/proc/self/environ", "/proc/self/fd/0", "/proc/1/environ", "/proc/self/mem"):
        assert isinstance(files.read(path), tuple), path
        assert isinstance(files.read_opened(path), tuple), path


def test_a_policy_path_with_needless_escapes_is_answered(place: Place) -> None:
    spelled = "".join(f"%{ord(letter):02X}" if letter != "/" else letter for letter in str(place.ws))
    files = Files(place, context(managed(rule(spelled, "write")), place.ws))
    assert files.write(place.ws / "n") == {}
    assert isinstance(files.write(place.other / "n"), tuple)


def test_a_write_outside_a_narrow_policy_does_not_seem_to_succeed(place: Place) -> None:
    policy = context(managed(special("minimal", "read"), rule(place.ws, "write")), place.ws)
    files = Files(place, policy)
    for path in ("/new", "/tmp/new", "/home/new", f"{place.folder}/new", f"{place.other}/new"):
        assert isinstance(files.write(path), tuple), path
        assert isinstance(files.ask("fs/createDirectory", path, recursive=True), tuple), path
        assert place.run(f"touch {path}", policy).exit_code != 0, path
        assert not os.path.exists(path)


def test_a_sandbox_inside_a_sandbox_starts_though_nothing_is_writable(place: Place) -> None:
    """With a namespace of its own a command may confine further what it starts; it needs no /tmp for it."""
    done = place.run("unshare --user --map-current-user true && echo nested", read_only(place.ws))
    assert done.stdout == b"nested\n" or b"unshare" in done.stderr
